package runc

import (
	"bytes"
	"fmt"
	"os"
	"strings"

	groups "github.com/containerd/cgroups/v3"
)

// Parent gives the parent of a process. Its errors are those of reading /proc.
func Parent(pid int) (parent int, err error) {
	s, err := stat(pid)
	return s.parent, err
}

// Started gives when a process began, in ticks since the host's start: its number may be another's once it has ended. Its errors are those
// of reading /proc.
func Started(pid int) (ticks uint64, err error) {
	s, err := stat(pid)
	return s.started, err
}

// Ended tells whether a process does not run any more, be it that nobody has waited for it yet.
func Ended(pid int) bool {
	s, err := stat(pid)
	return err != nil || s.ended()
}

// Ending tells whether a process has ended, or has begun to and runs no code of its own any more: its sockets are closed before its children have
// another parent.
func Ending(pid int) bool {
	s, err := stat(pid)
	return err != nil || s.ended() || s.flags&exiting != 0
}

// exiting is the kernel's PF_EXITING. Source: Linux, include/linux/sched.h.
const exiting = 4

type procStat struct {
	state   string
	parent  int
	flags   uint64
	started uint64
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
	if len(fields) < 20 {
		return s, fmt.Errorf("read /proc/%d/stat: %d fields", pid, len(fields))
	}
	s.state = fields[0]
	_, err = fmt.Sscan(fields[1]+" "+fields[6]+" "+fields[19], &s.parent, &s.flags, &s.started)
	return s, err
}

// Frozen tells whether the cgroup that a process is in has been frozen: its processes stand still, or will. Source of what is read:
// cgroups(7).
func Frozen(pid int) (bool, error) {
	v1, v2, err := groups.ParseCgroupFileUnified(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return false, err
	}
	g := cgroups{"": "/sys/fs/cgroup" + v2}
	if path := v1["freezer"]; path != "" {
		g["freezer"] = "/sys/fs/cgroup/freezer" + path
	}
	return g.frozen()
}
