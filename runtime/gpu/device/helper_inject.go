package device

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// injection is a thread of another process that makes system calls for us. All calls come from one thread of ours, which traces it.
// The way is that of compel, CRIU's library (compel/src/lib/infect.c); nothing is written into the process.
type injection struct {
	tid     int
	at      uint64 // address of a system call instruction in it
	mask    uint64 // its blocked signals before
	before  unix.PtraceRegs
	arrived []unix.Signal // signals that came meanwhile and cannot be blocked
}

// optionSuspendSeccomp is PTRACE_O_SUSPEND_SECCOMP of linux/ptrace.h: the process's filter does not see what we call, which its author knew nothing of.
const optionSuspendSeccomp = 1 << 21

// inject has a thread of a process make system calls. All of its threads are traced, and stand still.
func inject(pid, tid int) (*injection, error) {
	at, err := callInstruction(pid)
	if err != nil {
		return nil, err
	}
	r := &injection{tid: tid, at: at}
	if err := r.begin(); err != nil {
		return nil, fmt.Errorf("have thread %d make calls: %w", tid, err)
	}
	return r, nil
}

func (r *injection) begin() error {
	if err := unix.PtraceSetOptions(r.tid, unix.PTRACE_O_TRACESYSGOOD|optionSuspendSeccomp); err != nil { // where we have a filter ourselves, it cannot be
		if err := unix.PtraceSetOptions(r.tid, unix.PTRACE_O_TRACESYSGOOD); err != nil {
			return err
		}
	}
	if err := unix.PtraceGetRegs(r.tid, &r.before); err != nil {
		return err
	}
	if err := signalMask(unix.PTRACE_GETSIGMASK, r.tid, &r.mask); err != nil {
		return err
	}
	mask := ^uint64(0)
	return signalMask(unix.PTRACE_SETSIGMASK, r.tid, &mask)
}

// call has the thread make a system call.
func (r *injection) call(number uint64, args ...uint64) (uint64, error) {
	regs := r.before
	prepare(&regs, r.at, number, args)
	if err := unix.PtraceSetRegs(r.tid, &regs); err != nil {
		return 0, err
	}
	for range 2 { // it enters the call, it leaves it
		if err := r.untilCall(); err != nil {
			return 0, err
		}
	}
	if err := unix.PtraceGetRegs(r.tid, &regs); err != nil {
		return 0, err
	}
	result := int64(returned(&regs)) //nolint:gosec // the kernel returns errors as negative numbers
	if result < 0 && result > -4096 {
		return 0, unix.Errno(-result)
	}
	return uint64(result), nil //nolint:gosec // an address, a descriptor
}

// untilCall lets the thread run until it enters or leaves a system call.
func (r *injection) untilCall() error {
	const syscallStop = unix.SIGTRAP | 0x80 // by PTRACE_O_TRACESYSGOOD
	for {
		if err := unix.PtraceSyscall(r.tid, 0); err != nil {
			return err
		}
		var status unix.WaitStatus
		if _, err := unix.Wait4(r.tid, &status, unix.WALL, nil); err != nil {
			return err
		}
		switch {
		case !status.Stopped():
			return unix.ESRCH
		case status.StopSignal() == syscallStop:
			return nil
		case int(status)>>16 != unix.PTRACE_EVENT_STOP: // SIGSTOP cannot be blocked
			r.arrived = append(r.arrived, unix.Signal(status.StopSignal()))
		}
	}
}

// end puts all back as it was. The thread stands still. If it was stopped in a system call, the kernel has it make that again, as after a signal without a handler: the registers say so, and a thread that is let go looks for signals first
// (Linux, kernel/ptrace.c, __ptrace_unlink; arch/x86/kernel/signal.c, arch_do_signal_or_restart).
func (r *injection) end() error {
	err := errors.Join(unix.PtraceSetRegs(r.tid, &r.before), signalMask(unix.PTRACE_SETSIGMASK, r.tid, &r.mask))
	for _, s := range r.arrived {
		err = errors.Join(err, unix.Kill(r.tid, s))
	}
	if errors.Is(err, unix.ESRCH) { // it has ended
		return nil
	}
	return err
}

// callInstruction returns the address of a system call instruction in a process: its vDSO has some.
func callInstruction(pid int) (uint64, error) {
	if len(instruction) == 0 {
		return 0, fmt.Errorf("nothing is known of system calls of this architecture: %w", errdefs.ErrNotImplemented)
	}
	maps, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return 0, err
	}
	defer maps.Close()
	lines := bufio.NewScanner(maps)
	for lines.Scan() {
		if !strings.HasSuffix(lines.Text(), "[vdso]") {
			continue
		}
		var start, end uint64
		if _, err := fmt.Sscanf(lines.Text(), "%x-%x", &start, &end); err != nil || end-start > 1<<20 {
			break
		}
		memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
		if err != nil {
			return 0, err
		}
		defer memory.Close()
		code := make([]byte, end-start)
		if _, err := memory.ReadAt(code, int64(start)); err != nil { //nolint:gosec // an address of user space
			return 0, err
		}
		if i := bytes.Index(code, instruction); i >= 0 {
			return start + uint64(i), nil
		}
	}
	return 0, errors.Join(lines.Err(), fmt.Errorf("process %d has no vDSO with a system call: %w", pid, errdefs.ErrNotImplemented))
}
