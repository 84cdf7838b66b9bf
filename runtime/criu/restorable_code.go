package criu

import (
	"strings"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/failure"
)

// RuleCode refuses a process in which CRIU finds no place for its own code.
const RuleCode = "shared-code"

// infected refuses a process whose first code, by address, is shared and cannot be written: CRIU puts its own code there for a moment, and the kernel lets a tracer change private code only.
// PHP 8.4 has such memory for its compiler (JIT), also where that is off. Sources: CRIU 4.2, criu/parasite-syscall.c, get_exec_start; Linux, mm/gup.c, check_vma_flags.
func (p process) infected() *failure.Error {
	if !sharedCode(p.maps) {
		return nil
	}
	return failure.New(errdefs.ErrFailedPrecondition, "start PHP with opcache.jit_buffer_size=0, as by -d or in php.ini; have any other program map the code that it makes with MAP_PRIVATE, or at higher addresses than its own",
		RuleCode+": the first code in %s is a shared mapping that cannot be written, as PHP's compiler has it: CRIU could not save the process", name(p.pid)).By(RuleCode)
}

// sharedCode reports whether the first executable mapping in /proc/PID/maps is shared and cannot be written.
func sharedCode(maps string) bool {
	for line := range strings.Lines(maps) {
		words := strings.Fields(line)
		if len(words) > 1 && len(words[1]) == 4 && words[1][2] == 'x' {
			return words[1][3] == 's' && words[1][1] != 'w'
		}
	}
	return false
}
