package device

import "golang.org/x/sys/unix"

// instruction is syscall.
var instruction = []byte{0x0f, 0x05}

// prepare makes registers those of a system call at an address. Source: syscall(2), the calling convention of x86-64.
func prepare(regs *unix.PtraceRegs, at, number uint64, args []uint64) {
	regs.Rip, regs.Rax, regs.Orig_rax = at, number, ^uint64(0) // no call to be made again
	for i, to := range []*uint64{&regs.Rdi, &regs.Rsi, &regs.Rdx, &regs.R10, &regs.R8, &regs.R9} {
		*to = 0
		if i < len(args) {
			*to = args[i]
		}
	}
}

// returned is the result of a system call.
func returned(regs *unix.PtraceRegs) uint64 { return regs.Rax }
