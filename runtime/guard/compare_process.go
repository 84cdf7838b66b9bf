package guard

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/containerd/v2/pkg/cap"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Capabilities by which processes may give themselves what is compared. Source: capabilities(7).
const (
	setGID      = 1 << 6
	setUID      = 1 << 7
	sysAdmin    = 1 << 21
	sysNice     = 1 << 23
	sysResource = 1 << 24
)

// process compares a process and its threads. One that has ended has nothing.
func (k *check) process(pid int) (living bool, err error) {
	dir := fmt.Sprintf("/proc/%d", pid)
	threads, err := filepath.Glob(dir + "/task/[0-9]*")
	if err != nil {
		return false, err
	}
	for _, thread := range threads {
		s, err := status(thread)
		if err != nil {
			return false, err
		}
		if strings.HasPrefix(s["State"], "Z") || strings.HasPrefix(s["State"], "X") {
			continue
		}
		living = true
		if err := k.thread(thread, s); err != nil {
			return false, err
		}
	}
	if !living {
		return false, nil
	}
	return true, errors.Join(k.score(dir), k.limits(pid), k.label(dir), k.login(dir))
}

// status reads what the kernel says of a thread. Source: proc_pid_status(5).
func status(thread string) (map[string]string, error) {
	data, err := os.ReadFile(filepath.Join(thread, "status"))
	if err != nil {
		return nil, fmt.Errorf("look at a restored process: %w", err)
	}
	s := map[string]string{}
	for line := range strings.SplitSeq(string(data), "\n") {
		if key, value, ok := strings.Cut(line, ":"); ok {
			s[key] = strings.TrimSpace(value)
		}
	}
	return s, nil
}

func (k *check) thread(thread string, s map[string]string) error {
	for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
		has, err := strconv.ParseUint(s[set], 16, 64)
		if err != nil {
			return fmt.Errorf("look at a restored process: %s: %w", set, err)
		}
		if more := has &^ k.capabilities; more != 0 {
			k.differ(Capabilities, "a process with %s", names(more))
		}
	}
	p := k.Spec.Process
	if p.NoNewPrivileges && s["NoNewPrivs"] != "1" {
		k.differ(Privileges, "a process without no_new_privs")
	}
	// Source: runc, libcontainer/specconv.SetupSeccomp.
	if f := k.Spec.Linux.Seccomp; f != nil && (f.DefaultAction != "" || len(f.Syscalls) > 0) && s["Seccomp"] != "2" {
		k.differ(Privileges, "a process without a filter of system calls (seccomp)")
	}
	k.ids(s)
	if k.User && p.User.UID != 0 {
		k.user(s)
	}
	if err := k.cgroup(thread); err != nil {
		return err
	}
	if k.capabilities&sysNice != 0 {
		return nil
	}
	return k.schedule(thread)
}

// ids compares users and groups where no process can change them: it has not the capability, and no_new_privs keeps programs from giving it.
func (k *check) ids(s map[string]string) {
	p, l := k.Spec.Process, k.Spec.Linux
	if !p.NoNewPrivileges {
		return
	}
	compare := func(what, has string, granted ...string) {
		for _, id := range strings.Fields(has) {
			if !slices.Contains(granted, id) {
				k.differ(Privileges, "a process of the host's %s %s, which is none of the specification's", what, id)
			}
		}
	}
	if k.capabilities&setUID == 0 {
		compare("user", s["Uid"], onHost(p.User.UID, l.UIDMappings))
	}
	if k.capabilities&setGID == 0 {
		groups := k.groups()
		compare("group", s["Gid"], groups[0])
		compare("group", s["Groups"], groups...)
	}
}

// groups are the specification's, as the host's ids, the first one first.
func (k *check) groups() []string {
	u, mappings := k.Spec.Process.User, k.Spec.Linux.GIDMappings
	all := []string{onHost(u.GID, mappings)}
	for _, id := range u.AdditionalGids {
		all = append(all, onHost(id, mappings))
	}
	return all
}

// onHost returns the host's id of a container's.
func onHost(id uint32, mappings []specs.LinuxIDMapping) string {
	for _, m := range mappings {
		if id >= m.ContainerID && id-m.ContainerID < m.Size {
			id += m.HostID - m.ContainerID
			break
		}
	}
	return strconv.FormatUint(uint64(id), 10)
}

// user compares whom a thread belongs to. A program of another user cannot become this one, nor the reverse, but by capabilities or by a file's mode (setuid).
func (k *check) user(s map[string]string) {
	u, l := k.Spec.Process.User, k.Spec.Linux
	groups := k.groups()
	for key, may := range map[string][]string{"Uid": {onHost(u.UID, l.UIDMappings)}, "Gid": groups, "Groups": groups} {
		for has := range strings.FieldsSeq(s[key]) {
			if !slices.Contains(may, has) {
				k.differ(Privileges, "a process with %s %s", strings.ToLower(key), has)
			}
		}
	}
}

// names lists capabilities.
func names(set uint64) string {
	list, unknown := cap.FromBitmap(set)
	for _, n := range unknown {
		list = append(list, fmt.Sprintf("capability %d", n))
	}
	return strings.Join(list, ", ")
}

// schedule compares how a thread gets time.
func (k *check) schedule(thread string) error {
	id, err := strconv.Atoi(filepath.Base(thread))
	if err != nil {
		return fmt.Errorf("look at a restored process: %w", err)
	}
	priority, err := unix.Getpriority(unix.PRIO_PROCESS, id)
	if err != nil {
		return fmt.Errorf("look at the priority of a restored process: %w", err)
	}
	attributes, err := unix.SchedGetAttr(id, 0)
	if err != nil {
		return fmt.Errorf("look at the scheduling of a restored process: %w", err)
	}
	var wanted specs.Scheduler
	if s := k.Spec.Process.Scheduler; s != nil {
		wanted = *s
	}
	if nice := 20 - priority; nice < min(int(wanted.Nice), 0) { // Source: getpriority(2), C library/kernel differences
		k.differ(Privileges, "a process with the nice value %d", nice)
	}
	policies := map[uint32]specs.LinuxSchedulerPolicy{unix.SCHED_FIFO: specs.SchedFIFO, unix.SCHED_RR: specs.SchedRR, unix.SCHED_DEADLINE: specs.SchedDeadline}
	if name, realtime := policies[attributes.Policy]; realtime && wanted.Policy != name {
		k.differ(Privileges, "a process with real-time scheduling (%s)", name)
	}
	return nil
}

// cgroup compares where a thread counts: nowhere but in the container's cgroup or below it.
func (k *check) cgroup(thread string) error {
	has, err := cgroupsOf(filepath.Join(thread, "cgroup"))
	if err != nil {
		return err
	}
	for controller, path := range has {
		top, known := k.cgroups[controller]
		if !known || path != top && !strings.HasPrefix(path, strings.TrimSuffix(top, "/")+"/") {
			k.differ(Privileges, "a process in the cgroup %s of the controller %q, outside of the container's", path, controller)
		}
	}
	return nil
}

// cgroupsOf reads in which cgroups a thread is, by controller; "" is version 2.
func cgroupsOf(file string) (map[string]string, error) {
	at, unified, err := cgroups.ParseCgroupFileUnified(file)
	if err != nil {
		return nil, fmt.Errorf("look at the cgroup of a restored process: %w", err)
	}
	at[""] = unified
	return at, nil
}

// score raises the score by which the kernel chooses whom to end without memory to what runc would have given.
func (k *check) score(dir string) error {
	if k.capabilities&sysResource != 0 {
		return nil
	}
	read := func(file string) (int, error) {
		data, err := os.ReadFile(file)
		if err != nil {
			return 0, fmt.Errorf("look at the score of a restored process: %w", err)
		}
		return strconv.Atoi(strings.TrimSpace(string(data)))
	}
	file := filepath.Join(dir, "oom_score_adj")
	has, err := read(file)
	if err != nil {
		return err
	}
	lowest, err := read("/proc/self/oom_score_adj")
	if err != nil {
		return err
	}
	if s := k.Spec.Process.OOMScoreAdj; s != nil {
		lowest = *s
	}
	if has >= lowest {
		return nil
	}
	if err := os.WriteFile(file, []byte(strconv.Itoa(lowest)), 0); err != nil {
		k.differ(Privileges, "a process with the OOM score %d (%v)", has, err)
	}
	return nil
}

// login compares under which login id the audit of the kernel's knows a process: none, or this process's. Source: proc_pid_loginuid(5).
func (k *check) login(dir string) error {
	const none = "4294967295"
	ids := map[string]string{}
	for _, of := range []string{dir, "/proc/self"} {
		data, err := os.ReadFile(filepath.Join(of, "loginuid"))
		if errors.Is(err, fs.ErrNotExist) {
			return nil // the kernel has no audit
		}
		if err != nil {
			return fmt.Errorf("look at the login id of a restored process: %w", err)
		}
		ids[of] = strings.TrimSpace(string(data))
	}
	if has := ids[dir]; has != none && has != ids["/proc/self"] {
		k.differ(Privileges, "a process with the login id %s", has)
	}
	return nil
}

// resources are the limits that there are, by the specification's names. Source: setrlimit(2), OCI runtime specification, config, POSIX process.
var resources = []string{
	"RLIMIT_CPU", "RLIMIT_FSIZE", "RLIMIT_DATA", "RLIMIT_STACK", "RLIMIT_CORE", "RLIMIT_RSS", "RLIMIT_NPROC", "RLIMIT_NOFILE", "RLIMIT_MEMLOCK", "RLIMIT_AS",
	"RLIMIT_LOCKS", "RLIMIT_SIGPENDING", "RLIMIT_MSGQUEUE", "RLIMIT_NICE", "RLIMIT_RTPRIO", "RLIMIT_RTTIME",
}

// limits lowers those that are higher than the specification's, or than this process's where it has none.
func (k *check) limits(pid int) error {
	if k.capabilities&sysResource != 0 {
		return nil
	}
	for resource, name := range resources {
		var has, most unix.Rlimit
		if err := unix.Prlimit(0, resource, nil, &most); err != nil {
			return fmt.Errorf("look at own limits: %w", err)
		}
		if i := slices.IndexFunc(k.Spec.Process.Rlimits, func(l specs.POSIXRlimit) bool { return l.Type == name }); i >= 0 {
			most.Max = k.Spec.Process.Rlimits[i].Hard
		}
		if most.Max == math.MaxUint64 {
			continue
		}
		if err := unix.Prlimit(pid, resource, nil, &has); err != nil {
			return fmt.Errorf("look at the limits of a restored process: %w", err)
		}
		if has.Max <= most.Max {
			continue
		}
		lower := unix.Rlimit{Cur: min(has.Cur, most.Max), Max: most.Max}
		if err := unix.Prlimit(pid, resource, &lower, nil); err != nil {
			k.differ(Privileges, "a process with %s of %d (%v)", name, has.Max, err)
		}
	}
	return nil
}

// label compares by what name a security module knows a process, where there is one.
func (k *check) label(dir string) error {
	p := k.Spec.Process
	for _, module := range []struct{ file, wanted string }{{"attr/apparmor/current", p.ApparmorProfile}, {"attr/selinux/current", p.SelinuxLabel}} {
		if module.wanted == "" || module.wanted == "unconfined" {
			continue
		}
		data, err := os.ReadFile(filepath.Join(dir, module.file))
		if err != nil {
			if data, err = os.ReadFile(filepath.Join(dir, "attr/current")); err != nil {
				continue // the host has none, and runc would have given none
			}
		}
		has := strings.TrimRight(string(data), "\n\x00")
		has, _, _ = strings.Cut(has, " (")
		if has != "" && has != module.wanted && !strings.HasPrefix(has, module.wanted+"//") {
			k.differ(Privileges, "a process with the label %q, and not %q", has, module.wanted)
		}
	}
	return nil
}
