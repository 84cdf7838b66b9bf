package gpu

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/runtime/gpu/device"
)

// Process is one process of the container as /proc shows it.
type Process struct {
	PID     int    // of the host
	Inner   int    // in its own pid namespace
	Command string // as of comm
}

// String names the process for people.
func (p Process) String() string { return fmt.Sprintf("process %d (%s)", p.PID, p.Command) }

// proc reads what the kernel tells of processes below a root, which is a value for tests.
type proc struct{ root string }

func (p proc) path(pid int, name string) string {
	return filepath.Join(p.root, "proc", strconv.Itoa(pid), name)
}

// process looks at a process. Where it is gone the error is [fs.ErrNotExist].
func (p proc) process(pid int) (Process, error) {
	comm, err := os.ReadFile(p.path(pid, "comm"))
	if err != nil {
		return Process{}, fmt.Errorf("look at process %d: %w", pid, gone(err))
	}
	status, err := os.ReadFile(p.path(pid, "status"))
	if err != nil {
		return Process{}, fmt.Errorf("look at process %d: %w", pid, gone(err))
	}
	return Process{PID: pid, Inner: inner(status, pid), Command: strings.TrimSpace(string(comm))}, nil
}

// inner returns a process's id in the innermost of its pid namespaces. Source: proc_pid_status(5), NSpid.
func inner(status []byte, pid int) int {
	for line := range bytes.Lines(status) {
		name, ids, _ := strings.Cut(string(line), ":")
		if fields := strings.Fields(ids); name == "NSpid" && len(fields) > 0 {
			if n, err := strconv.Atoi(fields[len(fields)-1]); err == nil {
				return n
			}
		}
	}
	return pid
}

// parent returns the process that a process is a child of; 0: it is not known.
func (p proc) parent(pid int) int {
	status, err := os.ReadFile(p.path(pid, "status"))
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(status) {
		if name, id, _ := strings.Cut(string(line), ":"); name == "PPid" {
			n, _ := strconv.Atoi(strings.TrimSpace(id)) // the kernel's
			return n
		}
	}
	return 0
}

// exiting is PF_EXITING of Linux, include/linux/sched.h.
const exiting = 0x4

// alive reports whether a process runs. One that is being killed does not, although its end may take the kernel, or the
// driver, a while. Sources: proc_pid_stat(5) and proc_pid_status(5).
func (p proc) alive(pid int) bool {
	stat, err := os.ReadFile(p.path(pid, "stat"))
	if err != nil {
		return false
	}
	// After the command: state, ppid, pgrp, session, tty_nr, tpgid, flags.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 7 || fields[0] == "Z" || fields[0] == "X" {
		return false
	}
	if flags, err := strconv.ParseUint(fields[6], 10, 64); err == nil && flags&exiting != 0 {
		return false
	}
	status, err := os.ReadFile(p.path(pid, "status"))
	if err != nil {
		return false
	}
	for line := range bytes.Lines(status) {
		name, set, _ := strings.Cut(strings.TrimSpace(string(line)), ":")
		if name != "SigPnd" && name != "ShdPnd" {
			continue
		}
		if pending, err := strconv.ParseUint(strings.TrimSpace(set), 16, 64); err == nil && pending&(1<<(unix.SIGKILL-1)) != 0 {
			return false
		}
	}
	return true
}

// touches reports whether a process may have anything to do with CUDA: it has mapped the driver's library, which programs
// without it cannot do anything on a GPU, or has opened a device node of the driver.
func (p proc) touches(pid int) (bool, error) {
	return p.mapsOrOpened(pid, func(path string) bool { return strings.Contains(path, "/libcuda.so") || ofNodes(path) })
}

// ofNodes reports whether a path is that of a device node of the driver.
func ofNodes(path string) bool { return strings.HasPrefix(path, device.DeviceNodes) }

// mapsOrOpened reports whether a process has mapped a file whose path is one of those wanted, or has opened a device node of the driver.
func (p proc) mapsOrOpened(pid int, wanted func(path string) bool) (bool, error) {
	found, err := p.maps(pid, wanted)
	if err != nil || found {
		return found, err
	}
	return p.opened(pid, device.DeviceNodes)
}

// opened reports whether a process has a descriptor of a file whose path begins so.
func (p proc) opened(pid int, prefix string) (bool, error) {
	entries, err := os.ReadDir(p.path(pid, "fd"))
	if err != nil {
		return false, fmt.Errorf("look at descriptors of process %d: %w", pid, gone(err))
	}
	for _, e := range entries {
		target, err := os.Readlink(p.path(pid, filepath.Join("fd", e.Name())))
		if err == nil && strings.HasPrefix(target, prefix) {
			return true, nil
		}
	}
	return false, nil
}

// uvmNode is the driver's node for managed memory. Each context has 2 MiB of it mapped, and an allocation of managed memory has its size.
const uvmNode = "/dev/nvidia-uvm"

// largeManaged is smaller than what a pool of managed memory has mapped from its beginning, which is about twice as much as the device has (580.159.04, H200), and larger than what a context has.
const largeManaged = 1 << 30

// managed reports whether a process has much managed memory of the driver's, or a pool of it.
func (p proc) managed(pid int) (bool, error) {
	return p.mapping(pid, func(addresses, path string) bool {
		start, end, _ := strings.Cut(addresses, "-")
		from, err := strconv.ParseUint(start, 16, 64)
		to, errTo := strconv.ParseUint(end, 16, 64)
		return path == uvmNode && errors.Join(err, errTo) == nil && to-from >= largeManaged
	})
}

// maps reports whether a process has mapped a file whose path is one of those wanted.
func (p proc) maps(pid int, wanted func(path string) bool) (bool, error) {
	return p.mapping(pid, func(_, path string) bool { return wanted(path) })
}

// mapping reports whether a process has a mapping of a file that is wanted. Source: proc_pid_maps(5).
func (p proc) mapping(pid int, wanted func(addresses, path string) bool) (bool, error) {
	failed := func(err error) error { return fmt.Errorf("look at mappings of process %d: %w", pid, gone(err)) }
	file, err := os.Open(p.path(pid, "maps"))
	if err != nil {
		return false, failed(err)
	}
	defer file.Close()
	s := bufio.NewScanner(file)
	for s.Scan() {
		addresses, _, _ := strings.Cut(s.Text(), " ")
		if i := strings.IndexByte(s.Text(), '/'); i >= 0 && wanted(addresses, s.Text()[i:]) {
			return true, nil
		}
	}
	if err := s.Err(); err != nil {
		return false, failed(err)
	}
	return false, nil
}

// environment returns what a process was started with. What it has set itself since is not there.
func (p proc) environment(pid int) (map[string]string, error) {
	data, err := os.ReadFile(p.path(pid, "environ"))
	if err != nil {
		return nil, fmt.Errorf("look at the environment of process %d: %w", pid, gone(err))
	}
	all := map[string]string{}
	for _, v := range strings.Split(string(data), "\x00") {
		if name, value, ok := strings.Cut(v, "="); ok {
			if _, twice := all[name]; !twice { // as getenv(3)
				all[name] = value
			}
		}
	}
	return all, nil
}

// gone makes an error that means that a process has ended one of [fs.ErrNotExist]: the kernel says ESRCH for files that
// were opened before.
func gone(err error) error {
	if errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	}
	return err
}
