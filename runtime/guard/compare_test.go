package guard

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/containerd/errdefs"
	"github.com/moby/sys/mountinfo"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// child is a process that waits, with a child of its own.
func child(t *testing.T) int {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", "sleep 60 & echo; wait")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	t.Cleanup(func() {
		pids, _ := ProcessesOf(pid)
		for _, p := range pids {
			_ = unix.Kill(p, unix.SIGKILL)
		}
		_ = cmd.Wait()
	})
	return pid
}

func TestTree(t *testing.T) {
	pid := child(t)
	pids, err := ProcessesOf(pid)
	if err != nil || len(pids) != 2 || pids[0] != pid {
		t.Errorf("the tree of %d is %v (%v)", pid, pids, err)
	}
	if _, err := ProcessesOf(1 << 30); err == nil {
		t.Error("a process that is not there has a tree")
	}
}

func TestComes(t *testing.T) {
	pids, err := ProcessesOf(child(t))
	if err != nil || len(pids) != 2 {
		t.Fatal(pids, err)
	}
	for _, test := range []struct {
		pid, from int
		want      bool
	}{{pids[1], pids[0], true}, {pids[1], os.Getpid(), true}, {pids[0], pids[1], false}, {os.Getpid(), os.Getpid(), false}, {1, os.Getpid(), false}, {1 << 30, 1, false}} {
		if ComesFrom(test.pid, test.from) != test.want {
			t.Errorf("%+v", test)
		}
	}
}

// TestCheckHost has a process of the host taken for a container's: it has all that a container must not have.
func TestCheckHost(t *testing.T) {
	pid := child(t)
	spec := &specs.Spec{
		Process: &specs.Process{NoNewPrivileges: true},
		Root:    &specs.Root{Readonly: true},
		Linux: &specs.Linux{
			Namespaces:    []specs.LinuxNamespace{{Type: specs.PIDNamespace}, {Type: specs.MountNamespace}},
			Seccomp:       &specs.LinuxSeccomp{DefaultAction: specs.ActErrno},
			ReadonlyPaths: []string{"/proc/sys"},
		},
	}
	c := Container{Spec: spec, Rootfs: t.TempDir()}
	defer func(before int) { most = before }(most)
	most = 100
	err := Compare(pid, os.Getpid(), c)
	if !errdefs.IsPermissionDenied(err) {
		t.Fatalf("it is granted: %v", err)
	}
	wanted := []string{"no_new_privs", "(seccomp)", "the host's pid namespace", "the host's mount namespace", "a mount of", "its root file system writable"}
	if os.Geteuid() == 0 {
		wanted = append(wanted, "a process with CAP_")
	}
	for _, words := range wanted {
		if !strings.Contains(err.Error(), words) {
			t.Errorf("it says nothing of %q: %v", words, err)
		}
	}
	c.Allow = []string{AllGrants}
	if err := Compare(pid, os.Getpid(), c); err != nil {
		t.Errorf("all is allowed: %v", err)
	}
}

// TestFiles has a process in a mount namespace of its own, with files that the kernel makes for it, and some that come from outside.
func TestFiles(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not root")
	}
	var given []*os.File
	give := func(f *os.File, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		given = append(given, f)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	memory, err := unix.MemfdCreate("memory", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	poll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range []int{pair[0], pair[1], memory, poll} {
		give(os.NewFile(uintptr(fd), "kernel's"), nil)
	}
	give(os.Open("/dev/null"))
	give(os.Open("/proc/thread-self/ns/net")) // the first thread may have been left in another by a test before
	outside := len(given)
	give(os.Open("/etc/passwd"))
	give(os.Open("/"))
	give(os.Open("/proc/self/ns/mnt")) // it has another one
	cmd := exec.CommandContext(t.Context(), "unshare", "--mount", "sh", "-c", "exec sleep 60")
	cmd.ExtraFiles = given
	if cmd.Stdin, err = os.Open(os.DevNull); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	pid := cmd.Process.Pid
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); err == nil && string(name) == "sleep\n" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the process did not come")
		}
	}
	v, closed, err := viewOf(pid)
	if err != nil {
		t.Fatal(err)
	}
	defer closed()
	k := &check{found: map[string]bool{}}
	k.Spec = &specs.Spec{Linux: &specs.Linux{}}
	if err := k.files(pid, v); err != nil || len(k.differences) != len(given)-outside {
		t.Errorf("%q (%v)", k.differences, err)
	}
}

// TestAIORing checks that a container may have the ring of io_setup. The kernel maps it from a file system that is mounted in no container.
func TestAIORing(t *testing.T) {
	var context uintptr
	if _, _, errno := unix.Syscall(unix.SYS_IO_SETUP, 1, uintptr(unsafe.Pointer(&context)), 0); errno != 0 {
		t.Fatal(errno)
	}
	defer func() { _, _, _ = unix.Syscall(unix.SYS_IO_DESTROY, context, 0, 0) }()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(maps)) {
		words := strings.Fields(line)
		if !strings.Contains(line, "/[aio]") || !strings.HasPrefix(line, fmt.Sprintf("%x-", context)) {
			continue
		}
		var st unix.Statx_t
		path := "/proc/self/map_files/" + words[0]
		if err := unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_TYPE, &st); err != nil {
			t.Fatal(err)
		}
		if own, err := new(check).unmounted("/proc/self/", path, st); err != nil || !own {
			t.Errorf("a container may have it: %t (%v)", own, err)
		}
		return
	}
	t.Error("no ring is mapped")
}

// TestCheckLowers has limits and scores that are better than granted: they are set right.
func TestCheckLowers(t *testing.T) {
	pid := child(t)
	k := &check{found: map[string]bool{}}
	k.Spec = &specs.Spec{Process: &specs.Process{OOMScoreAdj: new(500), Rlimits: []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Hard: 64, Soft: 64}}}}
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	if err := errors.Join(k.limits(pid), k.score(dir)); err != nil || len(k.differences) > 0 {
		t.Fatalf("%v, %v", err, k.differences)
	}
	var has unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &has); err != nil || has.Max != 64 || has.Cur != 64 {
		t.Errorf("the limit is %+v (%v)", has, err)
	}
	if data, err := os.ReadFile(filepath.Join(dir, "oom_score_adj")); err != nil || strings.TrimSpace(string(data)) != "500" {
		t.Errorf("the score is %s (%v)", data, err)
	}
}

// TestIDs has users and groups that no process can give itself, and some that it can.
func TestIDs(t *testing.T) {
	spec := func(noNew bool) *specs.Spec {
		return &specs.Spec{Process: &specs.Process{NoNewPrivileges: noNew, User: specs.User{UID: 5, GID: 6, AdditionalGids: []uint32{6, 7}}},
			Linux: &specs.Linux{UIDMappings: []specs.LinuxIDMapping{{Size: 10, HostID: 100}}, GIDMappings: []specs.LinuxIDMapping{{Size: 10, HostID: 200}}}}
	}
	for _, test := range []struct {
		uid, gid, groups string
		capabilities     uint64
		noNew            bool
		more             int
	}{
		{"105\t105\t105\t105", "206\t206\t206\t206", "206 207", 0, true, 0},
		{"105\t100\t105\t105", "206\t206\t206\t206", "", 0, true, 1},
		{"5\t5\t5\t5", "206\t206\t206\t207", "200", 0, true, 3},
		{"0\t0\t0\t0", "0\t0\t0\t0", "0", setUID | setGID, true, 0},
		{"0\t0\t0\t0", "206\t206\t206\t206", "0", setUID, true, 1},
		{"0\t0\t0\t0", "0\t0\t0\t0", "0", 0, false, 0},
	} {
		k := &check{capabilities: test.capabilities, found: map[string]bool{}}
		k.Spec = spec(test.noNew)
		if k.ids(map[string]string{"Uid": test.uid, "Gid": test.gid, "Groups": test.groups}); len(k.differences) != test.more {
			t.Errorf("%+v: %q", test, k.differences)
		}
	}
}

func TestCgroup(t *testing.T) {
	dir := t.TempDir()
	write := func(text string) {
		if err := os.WriteFile(filepath.Join(dir, "cgroup"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for text, outside := range map[string]bool{
		"5:devices:/c\n0::/c\n": false, "5:devices:/c/below\n0::/c\n": false, "5:devices:/\n0::/c\n": true, "5:devices:/cd\n0::/c\n": true, "6:pids:/c\n": true,
	} {
		write(text)
		k := &check{cgroups: map[string]string{"devices": "/c", "": "/c"}, found: map[string]bool{}}
		if err := k.cgroup(dir); err != nil || len(k.differences) > 0 != outside {
			t.Errorf("%q: %v (%v)", text, k.differences, err)
		}
	}
	write("nonsense\n")
	if err := (&check{}).cgroup(dir); err == nil {
		t.Error("what is no cgroup is taken for one")
	}
}

func TestWants(t *testing.T) {
	for _, test := range []struct {
		mount specs.Mount
		at    string
		kind  string
		flags string
		want  bool
	}{
		{specs.Mount{Type: "proc", Destination: "/proc"}, "/proc", "proc", "rw", true},
		{specs.Mount{Type: "proc", Destination: "/proc"}, "/mnt", "proc", "rw", false},
		{specs.Mount{Type: "ext4", Destination: "/data", Source: "/dev/vdb"}, "/data", "ext4", "rw", true},
		{specs.Mount{Type: "bind", Destination: "/data", Source: "/data"}, "/data", "ext4", "rw", false},
		{specs.Mount{Type: "cgroup", Destination: "/sys/fs/cgroup", Options: []string{"ro"}}, "/sys/fs/cgroup", "cgroup2", "ro", true},
		{specs.Mount{Type: "cgroup", Destination: "/sys/fs/cgroup", Options: []string{"rw"}}, "/sys/fs/cgroup", "tmpfs", "rw", false},
		{specs.Mount{Type: "cgroup", Destination: "/sys/fs/cgroup"}, "/sys/fs/cgroup", "tmpfs", "ro", true},
		{specs.Mount{Type: "cgroup", Destination: "/sys/fs/cgroup", Options: []string{"rw"}}, "/sys/fs/cgroup/devices", "cgroup", "rw", true},
		{specs.Mount{Type: "cgroup", Destination: "/sys/fs/cgroup", Options: []string{"ro"}}, "/sys/fs/cgroup/devices", "cgroup", "rw", false},
		{specs.Mount{Type: "cgroup", Destination: "/sys/fs/cgroup"}, "/sys/fs/cgroups", "cgroup", "ro", false},
	} {
		k := &check{Container: Container{Spec: &specs.Spec{Mounts: []specs.Mount{test.mount}}}}
		if got := k.wants(&mountinfo.Info{Mountpoint: test.at, FSType: test.kind, Options: test.flags}); got != test.want {
			t.Errorf("%+v wants a %s (%s) at %s: %t", test.mount, test.kind, test.flags, test.at, got)
		}
	}
}

// TestPropagation: what a mount passes on to the host, and what it sees.
func TestPropagation(t *testing.T) {
	host := []*mountinfo.Info{{Mountpoint: "/proc"}, {Mountpoint: "/", Optional: "shared:3"}, {Mountpoint: "/mnt", Optional: "shared:31 master:1"}}
	for _, test := range []struct {
		at, optional string
		differs      bool
	}{
		{"/data", "", false}, {"/data", "master:3", false}, {"/data", "shared:3", true}, {"/data", "shared:31 master:1", true}, {"/", "master:9 propagate_from:3", false},
		{"/private", "", false}, {"/private", "master:3", true}, {"/own", "shared:30", false},
	} {
		k := &check{found: map[string]bool{}}
		k.Spec = &specs.Spec{Mounts: []specs.Mount{{Type: "bind", Destination: "/data", Options: []string{"rbind", "rslave"}}, {Type: "bind", Destination: "/private/", Options: []string{"rbind", "rprivate"}}}}
		if k.propagation(&mountinfo.Info{Mountpoint: test.at, Optional: test.optional}, host); len(k.differences) > 0 != test.differs {
			t.Errorf("%+v: %q", test, k.differences)
		}
	}
}

// TestUser: where the specification is not the snapshot's, its user is the one that processes must have.
func TestUser(t *testing.T) {
	spec := &specs.Spec{Process: &specs.Process{User: specs.User{UID: 1000, GID: 1000, AdditionalGids: []uint32{7}}}, Linux: &specs.Linux{}}
	for name, test := range map[string]struct {
		status map[string]string
		maps   []specs.LinuxIDMapping
		want   []string
	}{
		"as it should be":  {map[string]string{"Uid": "1000\t1000\t1000\t1000", "Gid": "1000\t1000\t7\t1000", "Groups": "7 1000"}, nil, nil},
		"root":             {map[string]string{"Uid": "1000\t1000\t0\t1000", "Gid": "1000", "Groups": ""}, nil, []string{"a process with uid 0"}},
		"root's group":     {map[string]string{"Uid": "1000", "Gid": "1000\t0", "Groups": "7"}, nil, []string{"a process with gid 0"}},
		"another group":    {map[string]string{"Uid": "1000", "Gid": "1000", "Groups": "7 8"}, nil, []string{"a process with groups 8"}},
		"mapped":           {map[string]string{"Uid": "101000", "Gid": "101000", "Groups": "100007"}, []specs.LinuxIDMapping{{HostID: 100000, Size: 65536}}, nil},
		"root of the host": {map[string]string{"Uid": "0", "Gid": "101000", "Groups": ""}, []specs.LinuxIDMapping{{HostID: 100000, Size: 65536}}, []string{"a process with uid 0"}},
	} {
		spec.Linux.UIDMappings, spec.Linux.GIDMappings = test.maps, test.maps
		k := &check{Container: Container{Spec: spec, User: true}, found: map[string]bool{}}
		k.user(test.status)
		if !slices.Equal(k.differences, test.want) {
			t.Errorf("%s: %q", name, k.differences)
		}
	}
}

// TestSchedule finds a priority above the specification's and a policy that is not the specification's.
func TestSchedule(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root may raise priorities")
	}
	differences := func(pid int, wanted *specs.Scheduler) []string {
		k := &check{found: map[string]bool{}}
		k.Spec = &specs.Spec{Process: &specs.Process{Scheduler: wanted}}
		if err := k.schedule(fmt.Sprintf("/proc/%d/task/%d", pid, pid)); err != nil {
			t.Fatal(err)
		}
		return k.differences
	}
	pid := child(t)
	if d := differences(pid, nil); len(d) > 0 {
		t.Errorf("a plain process has %v", d)
	}
	if err := unix.Setpriority(unix.PRIO_PROCESS, pid, -5); err != nil {
		t.Skip("the priority cannot be raised here: ", err)
	}
	if d := differences(pid, nil); len(d) != 1 || d[0] != "a process with the nice value -5" {
		t.Errorf("a process with a higher priority has %v", d)
	}
	if d := differences(pid, &specs.Scheduler{Nice: -5}); len(d) > 0 {
		t.Errorf("one that may have it has %v", d)
	}
	if err := unix.SchedSetAttr(pid, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}, 0); err != nil {
		t.Skip("there is no real-time scheduling here: ", err)
	}
	if d := differences(pid, &specs.Scheduler{Nice: -5}); len(d) != 1 || d[0] != "a process with real-time scheduling (SCHED_FIFO)" {
		t.Errorf("a real-time process has %v", d)
	}
	if d := differences(pid, &specs.Scheduler{Nice: -5, Policy: specs.SchedFIFO}); len(d) > 0 {
		t.Errorf("one that may be has %v", d)
	}
}
