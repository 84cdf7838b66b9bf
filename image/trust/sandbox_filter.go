package trust

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// calls are the system calls that reading, computing and answering take, with what Go's runtime needs for memory, threads, timers and signals. None of them
// takes a path, an address, or another process.
var calls = []uint32{
	unix.SYS_READ, unix.SYS_WRITE,
	unix.SYS_MUNMAP, unix.SYS_MADVISE,
	unix.SYS_FUTEX, unix.SYS_SCHED_YIELD, unix.SYS_NANOSLEEP, unix.SYS_CLOCK_NANOSLEEP, unix.SYS_CLOCK_GETTIME, unix.SYS_RESTART_SYSCALL, unix.SYS_EPOLL_PWAIT,
	unix.SYS_RT_SIGACTION, unix.SYS_RT_SIGPROCMASK, unix.SYS_RT_SIGRETURN, unix.SYS_SIGALTSTACK,
	unix.SYS_GETPID, unix.SYS_GETTID, unix.SYS_GETRANDOM,
	unix.SYS_EXIT, unix.SYS_EXIT_GROUP,
}

// thread are the flags with which Go starts threads. Source: Go 1.26, runtime/os_linux.go, cloneFlags.
const thread = unix.CLONE_VM | unix.CLONE_FS | unix.CLONE_FILES | unix.CLONE_SIGHAND | unix.CLONE_SYSVSEM | unix.CLONE_THREAD

// machine is what the filter must know of a machine.
type machine struct {
	arch   uint32 // as seccomp names it
	thread uint32 // flags with which threads are started
}

// Source of the flags of amd64: Go 1.26, runtime/sys_linux_amd64.s, clone.
var machines = map[string]machine{"amd64": {unix.AUDIT_ARCH_X86_64, thread | unix.CLONE_SETTLS}, "arm64": {unix.AUDIT_ARCH_AARCH64, thread}}

// Where the filter finds what is called. Source: linux/seccomp.h, struct seccomp_data.
const (
	offsetCall = 0
	offsetArch = 4
	offsetArgs = 16
)

// argument is where the lower half of one is, on a machine that stores it first. The kernel looks at no more of those that are asked for below.
func argument(n uint32) bpf.LoadAbsolute { return bpf.LoadAbsolute{Off: offsetArgs + 8*n, Size: 4} }

// filter makes the filter for a machine: what is not allowed kills the process. self is the process's own number, the only one that signals may be sent to.
func filter(m machine, self uint32) []bpf.Instruction {
	allow, kill := bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW}, bpf.RetConstant{Val: unix.SECCOMP_RET_KILL_PROCESS}
	program := []bpf.Instruction{
		bpf.LoadAbsolute{Off: offsetArch, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: m.arch, SkipTrue: 1},
		kill,
		bpf.LoadAbsolute{Off: offsetCall, Size: 4},
	}
	for _, call := range calls {
		program = append(program, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: call, SkipTrue: 1}, allow)
	}
	// One call with conditions: all must hold.
	only := func(call uint32, conditions ...bpf.Instruction) {
		conditions = append(conditions, allow, kill)
		program = append(program, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: call, SkipTrue: uint8(len(conditions))})
		program = append(program, conditions...)
	}
	// Memory of its own, of no file, shared with no process, and not to be executed: so it all counts for RLIMIT_DATA.
	const private = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS
	only(unix.SYS_MMAP,
		argument(2),
		bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: unix.PROT_EXEC, SkipTrue: 4},
		argument(3),
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: private, SkipTrue: 1},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: private | unix.MAP_FIXED, SkipTrue: 1},
	)
	only(unix.SYS_CLONE, argument(0), bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: m.thread, SkipTrue: 1})
	only(unix.SYS_TGKILL, argument(0), bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: self, SkipTrue: 1})           // the runtime interrupts its threads
	only(unix.SYS_PRCTL, argument(0), bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.PR_SET_VMA, SkipTrue: 1}) // it gives its memory names
	return append(program, kill)
}

// filterCalls sets the filter for all threads, and no_new_privs.
func filterCalls() error {
	m, ok := machines[runtime.GOARCH]
	if !ok {
		return errors.New("filter system calls: there is no filter for " + runtime.GOARCH)
	}
	raw, err := bpf.Assemble(filter(m, uint32(unix.Getpid())))
	if err != nil {
		return fmt.Errorf("filter system calls: %w", err)
	}
	program := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		program[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	runtime.LockOSThread() // both calls are for the same
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	set := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	other, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&set)))
	if errno != 0 {
		return fmt.Errorf("filter system calls (seccomp): %w", errno)
	}
	if other != 0 {
		return fmt.Errorf("filter system calls (seccomp): thread %d cannot have the filter", other)
	}
	return nil
}
