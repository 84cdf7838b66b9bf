package guard

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/trust"
)

// groupRoot is where cgroups are mounted. Source: runc, github.com/opencontainers/cgroups, defaultCgroupRoot.
const groupRoot = "/sys/fs/cgroup"

// values compares what the kernel says of the container's cgroup with the specification: no limit may be higher, and it may have no part of the CPUs' real time, no protection, and no
// device that the specification does not give it. Sources: Linux, cgroup-v1 and cgroup-v2.rst.
func (k *check) values(root string) error {
	r := k.Spec.Linux.Resources
	if r == nil {
		r = &specs.LinuxResources{}
	}
	g := values{check: k, root: root}
	if m := r.Memory; m != nil {
		g.most("memory", []string{"memory.limit_in_bytes", "memory.max"}, m.Limit)
		g.most("memory", []string{"memory.memsw.limit_in_bytes"}, m.Swap)
	}
	if p := r.Pids; p != nil {
		g.most("pids", []string{"pids.max"}, p.Limit)
	}
	g.cpu(r)
	if m := r.Memory; m == nil || m.DisableOOMKiller == nil || !*m.DisableOOMKiller {
		if text, ok := g.read("memory", "memory.oom_control"); ok && strings.Contains(text, "oom_kill_disable 1") {
			k.differ(Privileges, "a cgroup without an OOM killer")
		}
	}
	for _, file := range []string{"memory.min", "memory.low"} {
		if text, ok := g.read("", file); ok && text != "0" && r.Unified[file] == "" {
			k.differ(Privileges, "a cgroup with %s of %s", file, text)
		}
	}
	if text, ok := g.read("devices", "devices.list"); ok {
		for line := range strings.Lines(text) {
			if line = strings.TrimSpace(line); line != "" && !k.deviceRule(line, r.Devices) {
				k.differ(Privileges, "a cgroup that allows the devices %s", line)
			}
		}
	}
	return g.err
}

// program refuses a cgroup of version 2 that has no BPF program for devices. On a host with version 1 the comparison reads devices.list instead, which lists the devices.
func (k *check) program(root string) error {
	if _, v1 := k.cgroups["devices"]; v1 || k.cgroups[""] == "" {
		return nil
	}
	decides, err := decidesDevices(filepath.Join(root, k.cgroups[""]))
	if err != nil {
		return fmt.Errorf("look at the cgroup of a restored container: %w", err)
	}
	if !decides {
		k.differ(Privileges, "a cgroup that allows all devices")
	}
	return nil
}

// decidesDevices reports whether a cgroup of version 2 has a program that decides which devices may be opened. runc attaches one, by the specification, to the cgroup of every container; what
// it allows cannot be read. Source: bpf(2), BPF_PROG_QUERY.
func decidesDevices(dir string) (bool, error) {
	fd, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, os.NewSyscallError("open", err)
	}
	defer unix.Close(fd)
	query := struct {
		target, kind, flags, attached uint32
		ids                           uint64
		count, _                      uint32
	}{target: uint32(fd), kind: unix.BPF_CGROUP_DEVICE}
	_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_QUERY, uintptr(unsafe.Pointer(&query)), unsafe.Sizeof(query))
	switch errno {
	case 0:
		return query.count > 0, nil
	case unix.EINVAL, unix.ENOSYS: // the kernel has no such programs, and runc attaches none
		return true, nil
	}
	return false, os.NewSyscallError("bpf", errno)
}

// values reads files of the container's cgroup.
type values struct {
	*check
	root string
	err  error
}

// read returns the content of a file of version 1, or of version 2 where the controller has no hierarchy; false if there is none.
func (g *values) read(controller, file string) (string, bool) {
	path, v1 := g.cgroups[controller]
	dir := filepath.Join(g.root, controller)
	if !v1 || controller == "" {
		path, dir = g.cgroups[""], g.root
	}
	if path == "" || g.err != nil {
		return "", false
	}
	data, err := os.ReadFile(filepath.Join(dir, path, file))
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			g.err = fmt.Errorf("look at the cgroup of a restored container: %w", err)
		}
		return "", false
	}
	return strings.TrimSpace(string(data)), true
}

// most wants each of some files to have no more than the specification says, if it limits anything.
func (g *values) most(controller string, files []string, limit *int64) {
	if limit == nil || *limit <= 0 {
		return
	}
	for _, file := range files {
		text, ok := g.read(controller, file)
		if !ok {
			continue
		}
		if n, err := strconv.ParseInt(text, 10, 64); err != nil || n > *limit {
			g.differ(Privileges, "a cgroup with %s of %s, which the specification limits to %d", file, text, *limit)
		}
	}
}

// cpu compares the parts of the CPUs' time that the cgroup has at most.
func (g *values) cpu(r *specs.LinuxResources) {
	var c specs.LinuxCPU
	if r.CPU != nil {
		c = *r.CPU
	}
	if c.RealtimeRuntime == nil {
		if text, ok := g.read("cpu", "cpu.rt_runtime_us"); ok && text != "0" {
			g.differ(Privileges, "a cgroup with %s us of real-time scheduling", text)
		}
	}
	if c.Quota == nil || *c.Quota <= 0 {
		return
	}
	period := uint64(100_000) // the kernel's default
	if c.Period != nil && *c.Period > 0 {
		period = *c.Period
	}
	text, ok := g.read("cpu", "cpu.max")
	if quota, v1 := g.read("cpu", "cpu.cfs_quota_us"); v1 {
		of, _ := g.read("cpu", "cpu.cfs_period_us")
		text, ok = quota+" "+of, true
	}
	if !ok {
		return
	}
	var has, of int64
	if _, err := fmt.Sscan(text, &has, &of); err != nil || has <= 0 || of <= 0 || float64(has)/float64(of) > 1.01*float64(*c.Quota)/float64(period) {
		g.differ(Privileges, "a cgroup with %s of the CPUs' time (quota, period), which the specification limits to %d %d", text, *c.Quota, period)
	}
}

// tun is a device that runc before 1.2 allows all containers.
const tunMajor, tunMinor = 10, 200

// deviceRule reports whether the container may have a line of devices.list, as "c 1:3 rwm": runc's own rules, and those of the specification. Making a node opens nothing.
func (k *check) deviceRule(line string, rules []specs.LinuxDeviceCgroup) bool {
	var kind, numbers, access string
	if n, _ := fmt.Sscan(line, &kind, &numbers, &access); n != 3 {
		return false
	}
	if access == "m" {
		return true
	}
	first, second, _ := strings.Cut(numbers, ":")
	number := func(text string) int64 {
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			return n
		}
		return -1
	}
	major, minor := number(first), number(second)
	matches := func(wanted *int64, has int64) bool { return wanted == nil || *wanted == -1 || *wanted == has }
	if slices.ContainsFunc(rules, func(r specs.LinuxDeviceCgroup) bool {
		return r.Allow && strings.Trim(access, "m"+r.Access) == "" && (r.Type == "" || r.Type == "a" || r.Type == kind) && matches(r.Major, major) && matches(r.Minor, minor)
	}) {
		return true
	}
	if kind == "c" && (major == trust.TerminalMajor || major == tunMajor && minor == tunMinor) {
		return true
	}
	return kind != "a" && major >= 0 && minor >= 0 && k.mayHave(kind == "c", major, minor)
}
