package runc

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/failure"
)

// RuleStopped refuses a dump of stopped processes where CRIU cannot do it.
const RuleStopped = "stopped-process"

// Dumpable refuses, by an error of kind FailedPrecondition, a container that CRIU would never be done with. With cgroup v1, CRIU waits in ptrace(PTRACE_SEIZE) for a process that was
// stopped by a signal and then frozen: the kernel has it change its state first, which a frozen one does not. Sources: Linux, kernel/ptrace.c, ptrace_attach; CRIU 4.2, criu/seize.c.
func (c Container) Dumpable(_ context.Context) error {
	groups, err := c.cgroups()
	if err != nil || groups["freezer"] == "" {
		return nil //nolint:nilerr // runc says why, when it is asked
	}
	pids, err := groups.processes()
	if err != nil {
		return nil //nolint:nilerr // as above
	}
	for _, pid := range pids {
		if stopped(pid) {
			return failure.New(errdefs.ErrFailedPrecondition, fmt.Sprintf("let it go on (kill -CONT %d), and try again; a host with cgroup v2 takes snapshots of stopped processes, too", pid),
				RuleStopped+": process %d (%s) is stopped, and CRIU cannot dump a stopped process with cgroup v1", pid, command(pid)).By(RuleStopped)
		}
	}
	return nil
}

// stopped reports whether a signal has stopped a process. Of a frozen one /proc has the state of a sleeping one, and where it sleeps. Source: proc_pid_wchan(5).
func stopped(pid int) bool {
	s, err := stat(pid)
	if err != nil {
		return false
	}
	where, _ := os.ReadFile(fmt.Sprintf("/proc/%d/wchan", pid))
	return s.state == "T" || s.state == "D" && strings.HasPrefix(string(where), "do_signal_stop")
}
