package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/runtime/runc"
)

// watchTime is how long a container with devices, or one whose checkpoint has failed, is observed after the last step of the checkpoint, before the checkpoint reports that it
// runs on. A process that a checkpoint has damaged ends with its first instructions.
var watchTime = 200 * time.Millisecond

// look observes for a moment the container that is about to be reported as running, and returns an error if it does not run as before: its first process has ended, another was
// ended by a signal as damage causes it, or all stand still. After a checkpoint that has not failed, a container that was to end, or to stay paused, is not looked at.
//
// A process ends so if CRIU was killed while its code was in the process, if a driver reported success and had damaged the process, or if the kernel had no memory for what was
// moved back. None of these can happen to a container without devices whose dump CRIU has completed: look looks at that container once.
func (s *sequence) look(ctx context.Context, failed bool) error {
	if !failed && (s.result.Killed || s.Hold == nil && s.Dump.Exit || s.Frozen) {
		return nil
	}
	deadline := time.Now()
	if failed || s.Devices != nil {
		deadline = deadline.Add(watchTime)
	}
	for ; ; time.Sleep(20 * time.Millisecond) {
		if !s.Alive() {
			return errors.Join(errors.New("its first process has ended"), s.watch.lost())
		}
		if err := s.watch.lost(); err != nil {
			return err
		}
		if !time.Now().Before(deadline) {
			break
		}
	}
	if s.Frozen {
		return nil
	}
	var frozen bool
	err := within(ctx, func(ctx context.Context) (err error) {
		frozen, err = s.Paused(ctx)
		return err
	})
	if err == nil && frozen && s.Alive() {
		return errors.New("it stands frozen, and nothing has thawed it")
	}
	return nil
}

// watch holds the processes of a container, by descriptors that stay theirs when they have ended.
type watch struct{ processes []watched }

type watched struct {
	pid     int
	command string
	fd      int
}

// add takes up the processes that run and are not held yet.
func (w *watch) add(ctx context.Context, c Container) error {
	pids, err := c.Processes(ctx)
	if err != nil {
		return fmt.Errorf("list the processes: %w", err)
	}
	held := map[int]bool{}
	for _, p := range w.processes {
		held[p.pid] = !p.exited()
	}
	for _, pid := range pids {
		if held[pid] || runc.Ended(pid) {
			continue
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if errors.Is(err, unix.ESRCH) {
			continue
		}
		if err != nil {
			return fmt.Errorf("open process %d: %w", pid, err)
		}
		comm, _ := os.ReadFile(filepath.Join("/proc", fmt.Sprint(pid), "comm")) // empty if it has just ended
		w.processes = append(w.processes, watched{pid: pid, command: strings.TrimSpace(string(comm)), fd: fd})
	}
	return nil
}

// prune gives up the processes that have ended: before the freeze they do so of their own accord, or the checkpoint has failed and reports why.
func (w *watch) prune() {
	kept := w.processes[:0]
	for _, p := range w.processes {
		if p.exited() {
			_ = unix.Close(p.fd)
		} else {
			kept = append(kept, p)
		}
	}
	w.processes = kept
}

func (w *watch) close() {
	for _, p := range w.processes {
		_ = unix.Close(p.fd)
	}
	w.processes = nil
}

// exited reports whether the process has ended. Source: pidfd_open(2).
func (p watched) exited() bool {
	poll := []unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}}
	n, err := unix.Poll(poll, 0)
	return n > 0 && err == nil
}

// damage are the signals that end a process whose memory or registers are not what they were, and those by which the kernel ends a process for which it has no memory. A
// process that ends in another way, as by exit or SIGTERM, does so of its own accord, and the checkpoint is not to blame.
var damage = map[unix.Signal]bool{
	unix.SIGSEGV: true, unix.SIGBUS: true, unix.SIGILL: true, unix.SIGFPE: true, unix.SIGTRAP: true, unix.SIGSYS: true, unix.SIGABRT: true, unix.SIGKILL: true,
}

// lost returns an error that names the processes that were ended by such a signal. Linux before 6.15 does not keep the status of a process that its parent has waited for: such
// a process is passed over.
func (w *watch) lost() error {
	var lost []string
	for _, p := range w.processes {
		if !p.exited() {
			continue
		}
		if status, ok := p.status(); ok && status.Signaled() && damage[status.Signal()] {
			lost = append(lost, fmt.Sprintf("%d (%s), by signal %d (%s)", p.pid, p.command, status.Signal(), unix.SignalName(status.Signal())))
		}
	}
	if len(lost) == 0 {
		return nil
	}
	return fmt.Errorf("it does not run as before: processes have ended: %s", strings.Join(lost, "; "))
}

// status returns how the process has ended. Sources: Linux, include/uapi/linux/pidfd.h, and proc_pid_stat(5), exit_code.
func (p watched) status() (unix.WaitStatus, bool) {
	info := unix.PidfdInfo{Mask: unix.PIDFD_INFO_EXIT}
	if err := unix.IoctlPidfdInfo(p.fd, &info); err == nil && info.Mask&unix.PIDFD_INFO_EXIT != 0 {
		return unix.WaitStatus(info.Exit_code), true
	}
	return runc.ExitStatus(p.pid)
}
