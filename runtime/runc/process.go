package runc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	groups "github.com/containerd/cgroups/v3"
	"golang.org/x/sys/unix"
)

// Parent returns the parent of a process. Its errors are those of reading /proc.
func Parent(pid int) (parent int, err error) {
	s, err := stat(pid)
	return s.parent, err
}

// Started returns when a process began, in ticks since the host's start: its number may be another's once it has ended. Its errors are those
// of reading /proc.
func Started(pid int) (ticks uint64, err error) {
	s, err := stat(pid)
	return s.started, err
}

// Ended reports whether a process does not run any more, be it that no process has waited for it yet.
func Ended(pid int) bool {
	s, err := stat(pid)
	return err != nil || s.ended()
}

// Doomed reports whether a process has ended, or is about to be killed: a cgroup of version 1 that is frozen holds SIGKILL back.
func Doomed(pid int) bool {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil || Ended(pid) {
		return true
	}
	for _, field := range []string{"SigPnd:", "ShdPnd:"} {
		_, after, _ := strings.Cut(string(status), "\n"+field)
		set, _, _ := strings.Cut(after, "\n")
		pending, err := strconv.ParseUint(strings.TrimSpace(set), 16, 64)
		if err != nil || pending&(1<<(unix.SIGKILL-1)) != 0 {
			return true
		}
	}
	return false
}

// Ending reports whether a process has ended, or has begun to and runs no code of its own any more: its sockets are closed before its children have
// another parent.
func Ending(pid int) bool {
	s, err := stat(pid)
	return err != nil || s.ended() || s.flags&exiting != 0
}

// ExitStatus returns how a process has ended that its parent has not waited for yet. false: it runs, or it is gone.
func ExitStatus(pid int) (unix.WaitStatus, bool) {
	s, err := stat(pid)
	return unix.WaitStatus(s.status), err == nil && s.ended()
}

// exiting is the kernel's PF_EXITING. Source: Linux, include/linux/sched.h.
const exiting = 4

type procStat struct {
	state    string
	parent   int
	flags    uint64
	computed uint64 // time on a CPU, in ticks
	started  uint64
	status   uint32 // as of wait(2); of meaning only when it has ended
}

func (s procStat) ended() bool { return s.state == "Z" || s.state == "X" }

// stat reads what /proc says of a process. Source: proc_pid_stat(5).
func stat(pid int) (s procStat, err error) {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return s, err
	}
	// The command, before them, is in parentheses and may hold anything.
	fields := strings.Fields(string(line[bytes.LastIndexByte(line, ')')+1:]))
	if len(fields) < 50 {
		return s, fmt.Errorf("read /proc/%d/stat: %d fields", pid, len(fields))
	}
	s.state = fields[0]
	var user, system uint64
	_, err = fmt.Sscan(strings.Join([]string{fields[1], fields[6], fields[11], fields[12], fields[19], fields[49]}, " "), &s.parent, &s.flags, &user, &system, &s.started, &s.status)
	s.computed = user + system
	return s, err
}

// Frozen reports whether the cgroup that a process is in has been frozen: its processes stand still, or will.
func Frozen(pid int) (bool, error) {
	g, err := cgroupsOf(pid)
	if err != nil {
		return false, err
	}
	return g.frozen()
}

// FreezeRestored has the processes of a container that CRIU has restored, and still has stopped, stand still when it lets them go. It returns at once; thaw has them run. all are
// the container's processes, from the first on. runc has put CRIU into the container's cgroup, where it would stand still as well: it, and what it has started, goes where this process is.
func FreezeRestored(all []int) (thaw func(context.Context) error, err error) {
	g, err := cgroupsOf(all[0])
	if err != nil {
		return nil, err
	}
	own, err := cgroupsOf(os.Getpid())
	if err != nil {
		return nil, err
	}
	from, err := g.dir("freezer")
	if err != nil {
		return nil, err
	}
	to, err := own.dir("freezer")
	if err != nil {
		return nil, err
	}
	inside, err := members(from)
	if err != nil {
		return nil, err
	}
	for _, pid := range inside {
		if slices.Contains(all, pid) {
			continue
		}
		if err := write(filepath.Join(to, "cgroup.procs"), strconv.Itoa(pid)); err != nil && !errors.Is(err, unix.ESRCH) {
			return nil, fmt.Errorf("take CRIU out of the container's cgroup: %w", err)
		}
	}
	path, running, err := g.freezer()
	if err != nil {
		return nil, err
	}
	frozen := "FROZEN"
	if running == "0" {
		frozen = "1"
	}
	if err := write(path, frozen); err != nil {
		return nil, fmt.Errorf("freeze the cgroup: %w", err)
	}
	return g.thaw, nil
}

// cgroupsOf returns the cgroups of a process as far as they are about freezing. Source of what is read: cgroups(7).
func cgroupsOf(pid int) (cgroups, error) {
	v1, v2, err := groups.ParseCgroupFileUnified(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return nil, err
	}
	g := cgroups{"": "/sys/fs/cgroup" + v2}
	const freezer = "/sys/fs/cgroup/freezer"
	if path := v1["freezer"]; path != "" {
		if _, err := os.Stat(freezer); err == nil { // else version 2 alone is mounted
			g["freezer"] = freezer + path
		}
	}
	return g, nil
}
