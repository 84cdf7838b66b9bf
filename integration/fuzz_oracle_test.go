package integration

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/pkg/cap"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/integration/lab"
)

// canaries are files outside of all containers, which nothing may touch.
type canaries struct {
	dir  string
	host *lab.Host // whose cgroups are looked at
}

func newCanaries(t *testing.T, h *lab.Host) *canaries {
	t.Helper()
	c := &canaries{dir: t.TempDir(), host: h}
	if err := os.Mkdir(filepath.Join(c.dir, "x"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"canary", "x/canary"} {
		if err := os.WriteFile(filepath.Join(c.dir, name), []byte("untouched"), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// look says of each file what changes when it is written to, moved, or given away; of the kernel's, what is in it.
func (c *canaries) look() map[string]string {
	seen := map[string]string{}
	for _, dir := range []string{c.dir, "/etc", "/usr/bin", "/usr/sbin", "/opt", "/boot", "/srv", "/var/spool", "/usr/lib/systemd"} {
		_ = filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			var s unix.Stat_t
			if err == nil && unix.Lstat(path, &s) == nil {
				seen[path] = fmt.Sprintf("mode %o of %d:%d, %d bytes, changed %d.%09d", s.Mode, s.Uid, s.Gid, s.Size, s.Ctim.Sec, s.Ctim.Nsec)
			}
			return nil
		})
	}
	cgroups := fmt.Sprintf("/proc/%d/root/sys/fs/cgroup", c.host.Pid())
	_ = filepath.WalkDir(cgroups, func(path string, d fs.DirEntry, err error) error {
		if name := strings.TrimPrefix(path, cgroups); err == nil && d.IsDir() && !fuzzName.MatchString(name) && !strings.HasSuffix(name, "/default") {
			seen["cgroup "+name] = ""
		}
		return nil
	})
	// What is in the host's /dev comes and goes, but not by its mode, owner or name.
	_ = filepath.WalkDir("/dev", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && slices.Contains([]string{"/dev/pts", "/dev/shm", "/dev/mqueue", "/dev/fd", "/dev/hugepages"}, path) {
			return filepath.SkipDir
		}
		var s unix.Stat_t
		if err == nil && unix.Lstat(path, &s) == nil {
			seen[path] = fmt.Sprintf("mode %o of %d:%d, device %#x", s.Mode, s.Uid, s.Gid, s.Rdev)
		}
		return nil
	})
	top, _ := os.ReadDir("/")
	for _, e := range top {
		seen["/"+e.Name()] = e.Type().String()
	}
	// Keys of the host: what its session keyring, and root's, have in them.
	for name, ring := range map[string]int{"session": unix.KEY_SPEC_SESSION_KEYRING, "user": unix.KEY_SPEC_USER_KEYRING} {
		keys := make([]byte, 4096)
		n, err := unix.KeyctlBuffer(unix.KEYCTL_READ, ring, keys, 0)
		seen["keyring "+name] = fmt.Sprintf("%x %v", keys[:max(0, min(n, len(keys)))], err)
	}
	for _, name := range []string{"core_pattern", "modprobe", "hostname", "domainname", "sysrq", "panic", "shmmax", "msgmax", "sem", "pid_max", "randomize_va_space"} {
		data, _ := os.ReadFile("/proc/sys/kernel/" + name)
		seen["/proc/sys/kernel/"+name] = string(data)
	}
	return seen
}

// changes says what is otherwise than before.
func changes(before, after map[string]string) (found []string) {
	for _, path := range slices.Sorted(maps.Keys(before)) {
		if before[path] != after[path] {
			found = append(found, fmt.Sprintf("outside of the container: %s was %q and is %q", path, before[path], after[path]))
		}
	}
	for _, path := range slices.Sorted(maps.Keys(after)) {
		if _, was := before[path]; !was {
			found = append(found, "outside of the container, new: "+path)
		}
	}
	return found
}

// profile is what a restored container has that does not follow from its specification here, and is the same each time.
type profile struct {
	mounts  map[string]bool
	cgroups map[string]bool
	foreign map[string]bool // open files on mounts that are not the container's: its standard streams
	kernel  map[string]bool // open files of /proc and /sys
}

// fuzzName is the name of a container of the fuzzer's.
var fuzzName = regexp.MustCompile(`fuzz-[a-z0-9-]+`)

func profileOf(t *testing.T, pid int) profile {
	t.Helper()
	p := profile{mounts: map[string]bool{}, cgroups: map[string]bool{}, foreign: map[string]bool{}, kernel: map[string]bool{}}
	for _, m := range mountsOf(pid) {
		p.mounts[m.String()] = true
	}
	for _, id := range insiders(pid) {
		for _, line := range cgroupsOf(id) {
			p.cgroups[line] = true
		}
		for _, file := range foreignFiles(id) {
			p.foreign[file] = true
		}
		for _, file := range kernelFiles(id) {
			p.kernel[file] = true
		}
	}
	return p
}

// mounted is a line of mountinfo(5).
type mounted struct {
	id, root, at, kind string
	readonly           bool
}

func (m mounted) String() string {
	return fmt.Sprintf("%s of %s at %s, read-only: %t", m.root, m.kind, m.at, m.readonly)
}

func mountsOf(pid int) (all []mounted) {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	for line := range strings.Lines(string(data)) {
		before, after, _ := strings.Cut(line, " - ")
		a, b := strings.Split(before, " "), strings.Split(strings.TrimSpace(after), " ") // a source may be empty
		const options, least = 5, 3
		if len(a) <= options || len(b) < least {
			continue
		}
		all = append(all, mounted{id: a[0], root: a[3], at: a[4], kind: b[0],
			readonly: slices.Contains(strings.Split(a[options], ","), "ro") || slices.Contains(strings.Split(b[2], ","), "ro")})
	}
	return all
}

// insiders are the processes of a container: those in the pid namespace of its first one, and their children.
func insiders(pid int) (pids []int) {
	own, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid))
	if err != nil {
		return nil
	}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		n, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		parent := status(n)["PPid"]
		if ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", n)); err == nil && ns == own || parent != "" && parent == strconv.Itoa(pid) {
			pids = append(pids, n)
		}
	}
	return pids
}

func status(pid int) map[string]string {
	fields := map[string]string{}
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(data)) {
		key, value, _ := strings.Cut(line, ":")
		fields[key] = strings.TrimSpace(value)
	}
	return fields
}

func cgroupsOf(pid int) (lines []string) {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	for line := range strings.Lines(string(data)) {
		lines = append(lines, fuzzName.ReplaceAllString(strings.TrimSpace(line), "NAME"))
	}
	return lines
}

// foreignFiles are open files of a process that are on no mount that it has.
func foreignFiles(pid int) (files []string) {
	var ids []string
	for _, m := range mountsOf(pid) {
		ids = append(ids, m.id)
	}
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	fds, _ := os.ReadDir(dir)
	for _, fd := range fds {
		link, err := os.Readlink(filepath.Join(dir, fd.Name()))
		if err != nil || !strings.HasPrefix(link, "/") || strings.HasPrefix(link, "/memfd:") {
			continue
		}
		info, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%s", pid, fd.Name()))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(info)) {
			if id, ok := strings.CutPrefix(line, "mnt_id:"); ok && !slices.Contains(ids, strings.TrimSpace(id)) {
				files = append(files, fuzzName.ReplaceAllString(link, "NAME"))
			}
		}
	}
	return files
}

// openFiles calls look with what the descriptors of a process lead to.
func openFiles(pid int, look func(fd, link string)) {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	fds, _ := os.ReadDir(dir)
	for _, fd := range fds {
		if link, err := os.Readlink(filepath.Join(dir, fd.Name())); err == nil {
			look(filepath.Join(dir, fd.Name()), link)
		}
	}
}

// kernelFiles are open files of /proc and /sys, and devices that no container has.
func kernelFiles(pid int) (files []string) {
	openFiles(pid, func(fd, link string) {
		var fs unix.Statfs_t
		var st unix.Stat_t
		if unix.Statfs(fd, &fs) == nil && (fs.Type == unix.PROC_SUPER_MAGIC || fs.Type == unix.SYSFS_MAGIC) {
			files = append(files, link)
		}
		if unix.Stat(fd, &st) == nil && (st.Mode&unix.S_IFMT == unix.S_IFCHR || st.Mode&unix.S_IFMT == unix.S_IFBLK) {
			files = append(files, fmt.Sprintf("%s, %o, %d:%d", fuzzName.ReplaceAllString(link, "NAME"), st.Mode, unix.Major(st.Rdev), unix.Minor(st.Rdev)))
		}
	})
	return files
}

// unreadable are open files, read by a process that is not their owner and has no capability for them.
func unreadable(pid int, s map[string]string) (files []string) {
	const override = 1 << 1 // CAP_DAC_OVERRIDE
	has, _ := strconv.ParseUint(s["CapPrm"], 16, 64)
	ids := append(strings.Fields(s["Gid"]), strings.Fields(s["Groups"])...)
	openFiles(pid, func(fd, link string) {
		var st unix.Stat_t
		if has&override != 0 || unix.Stat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
			return
		}
		bits := st.Mode
		switch {
		case slices.Contains(strings.Fields(s["Uid"]), strconv.Itoa(int(st.Uid))):
			bits >>= 6
		case slices.Contains(ids, strconv.Itoa(int(st.Gid))):
			bits >>= 3
		}
		if bits&0o6 == 0 {
			files = append(files, fmt.Sprintf("%s, mode %o of %d:%d", link, st.Mode, st.Uid, st.Gid))
		}
	})
	return files
}

// compare says in what a container differs from its grant: the specification, and what the same snapshot has where it is not changed.
func (p profile) compare(t *testing.T, pid int, spec *specs.Spec) (findings []string) {
	t.Helper()
	found := func(format string, a ...any) { findings = append(findings, fmt.Sprintf(format, a...)) }
	granted := uint64(0)
	known := cap.Known()
	for _, names := range [][]string{spec.Process.Capabilities.Bounding, spec.Process.Capabilities.Permitted, spec.Process.Capabilities.Effective} {
		for _, name := range names {
			granted |= 1 << slices.Index(known, name)
		}
	}
	for _, id := range insiders(pid) {
		s := status(id)
		if len(s) == 0 || strings.HasPrefix(s["State"], "Z") {
			continue
		}
		for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
			if has, err := strconv.ParseUint(s[set], 16, 64); err != nil || has&^granted != 0 {
				found("process %s has %s %s beyond %x", s["NSpid"], set, s[set], granted)
			}
		}
		if spec.Process.NoNewPrivileges && s["NoNewPrivs"] != "1" {
			found("process %s has no no_new_privs", s["NSpid"])
		}
		if spec.Linux.Seccomp != nil && s["Seccomp"] != "2" {
			found("process %s has no seccomp filter", s["NSpid"])
		}
		for _, ns := range spec.Linux.Namespaces {
			kind := map[specs.LinuxNamespaceType]string{specs.NetworkNamespace: "net", specs.MountNamespace: "mnt"}[ns.Type]
			if kind == "" {
				kind = string(ns.Type)
			}
			link, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", id, kind))
			own, err2 := os.Readlink("/proc/self/ns/" + kind)
			first, _ := os.Readlink("/proc/1/ns/" + kind) // which may be more than its owner can read
			if err != nil || err2 != nil || link == own || link == first {
				found("process %s is in the %s namespace of the host: %s %s %s", s["NSpid"], kind, link, own, first)
			}
		}
		if user, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/user", id)); err == nil {
			if own, err := os.Readlink("/proc/self/ns/user"); err == nil && own != user {
				found("process %s has a user namespace", s["NSpid"])
			}
		}
		for _, line := range cgroupsOf(id) {
			if !p.cgroups[line] {
				found("process %s is in the cgroup %s", s["NSpid"], line)
			}
		}
		for _, file := range foreignFiles(id) {
			if !p.foreign[file] {
				found("process %s has a file of another mount namespace open: %s", s["NSpid"], file)
			}
		}
		for _, file := range kernelFiles(id) {
			if !p.kernel[file] {
				found("process %s has a file of the kernel's open: %s", s["NSpid"], file)
			}
		}
		for _, file := range unreadable(id, s) {
			found("process %s has a file open that it may not open: %s", s["NSpid"], file)
		}
		for _, link := range []string{"cwd", "root"} {
			if at, err := os.Readlink(fmt.Sprintf("/proc/%d/%s", id, link)); err == nil && strings.HasPrefix(at, "(unreachable)") {
				found("process %s has its %s at %s", s["NSpid"], link, at)
			}
		}
		for _, m := range mountsOf(id) {
			own := slices.Contains([]string{"tmpfs", "mqueue", "devpts"}, m.kind) && (m.root == "/" || m.kind == "devpts") && !strings.HasPrefix(m.at, "/proc") && !strings.HasPrefix(m.at, "/sys")
			less := m
			less.readonly = false
			if !p.mounts[m.String()] && !own && !(m.readonly && p.mounts[less.String()]) {
				found("process %s has mounted %s", s["NSpid"], m)
			}
		}
		findings = append(findings, unmasked(id)...)
		if attr, err := unix.SchedGetAttr(id, 0); err == nil && (attr.Policy == unix.SCHED_FIFO || attr.Policy == unix.SCHED_RR || attr.Policy == unix.SCHED_DEADLINE || attr.Nice < 0) {
			found("process %s has the scheduling policy %d, nice %d", s["NSpid"], attr.Policy, attr.Nice)
		}
	}
	slices.Sort(findings)
	return slices.Compact(findings)
}

// unmasked looks through a process's own root for files of the kernel's that are not masked.
func unmasked(pid int) (findings []string) {
	root := fmt.Sprintf("/proc/%d/root", pid)
	for _, at := range []string{"/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs", "/sys"} {
		var s unix.Statfs_t
		if err := unix.Statfs(root+at, &s); err == nil && (s.Type == unix.PROC_SUPER_MAGIC || s.Type == unix.SYSFS_MAGIC) && s.Flags&unix.ST_RDONLY == 0 {
			findings = append(findings, at+" is writable")
		}
	}
	for _, at := range []string{"/proc/kcore", "/proc/keys", "/proc/timer_list"} {
		var s unix.Statfs_t
		if err := unix.Statfs(root+at, &s); err == nil && s.Type == unix.PROC_SUPER_MAGIC {
			findings = append(findings, at+" is not masked")
		}
	}
	return findings
}
