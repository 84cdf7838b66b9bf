package trust

import (
	"context"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image/failure"
)

// ctrRun is the specification that `ctr run` with some flags makes.
func ctrRun(t *testing.T, opts ...oci.SpecOpts) *specs.Spec {
	t.Helper()
	ctx := namespaces.WithNamespace(t.Context(), "default")
	opts = append([]oci.SpecOpts{oci.WithDefaultSpecForPlatform("linux/amd64"), oci.WithDefaultUnixDevices, oci.WithProcessArgs("sleep", "1")}, opts...)
	spec, err := oci.GenerateSpec(ctx, nil, &containers.Container{ID: "c"}, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

func change(f func(*specs.Spec)) oci.SpecOpts {
	return func(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error { f(s); return nil }
}

func TestOrdinaryContainersNeedNoGrant(t *testing.T) {
	for name, opts := range map[string][]oci.SpecOpts{
		"plain":             nil,
		"--memory-limit":    {oci.WithMemoryLimit(1 << 30)},
		"--cpus":            {oci.WithCPUCFS(50000, 100000)},
		"--cpuset-cpus":     {oci.WithCPUs("0-1")},
		"--tty":             {oci.WithTTY},
		"--env":             {oci.WithEnv([]string{"A=b"})},
		"--user":            {change(func(s *specs.Spec) { s.Process.User = specs.User{UID: 1000, GID: 1000, AdditionalGids: []uint32{10}} })},
		"--cwd":             {oci.WithProcessCwd("/tmp")},
		"--read-only":       {oci.WithRootFSReadonly()},
		"--allow-new-privs": {oci.WithNewPrivileges},
		"--hostname":        {oci.WithHostname("h")},
		"--rlimit-nofile":   {oci.WithRlimit(&specs.POSIXRlimit{Type: "RLIMIT_NOFILE", Hard: 10, Soft: 10})},
		"--cap-drop":        {oci.WithDroppedCapabilities([]string{"CAP_CHOWN"})},
		"--label":           {oci.WithAnnotations(map[string]string{"a": "b"})},
		"--uidmap":          {oci.WithUserNamespace([]specs.LinuxIDMapping{{HostID: 100000, Size: 65536}}, []specs.LinuxIDMapping{{HostID: 100000, Size: 65536}})},
		"tmpfs":             {oci.WithMounts([]specs.Mount{{Destination: "/scratch", Type: "tmpfs", Source: "tmpfs"}})},
		"cgroup, read-only": {oci.WithMounts([]specs.Mount{{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"ro", "nosuid"}}})},
		"nerdctl's sysctl":  {change(func(s *specs.Spec) { s.Linux.Sysctl = map[string]string{"net.ipv4.ip_unprivileged_port_start": "0"} })},
		"AppArmor":          {change(func(s *specs.Spec) { s.Process.ApparmorProfile = "nerdctl-default" })},
		"SELinux":           {change(func(s *specs.Spec) { s.Process.SelinuxLabel = "system_u:system_r:container_t:s0:c12,c34" })},
		"mknod of anything": {change(func(s *specs.Spec) {
			s.Linux.Resources.Devices = append(s.Linux.Resources.Devices, specs.LinuxDeviceCgroup{Allow: true, Type: "c", Access: "m"})
		})},
	} {
		t.Run(name, func(t *testing.T) {
			spec := ctrRun(t, opts...)
			before, _ := json.Marshal(spec)
			dropped, err := Confine(spec, nil, Policy{})
			if err != nil || len(dropped) > 0 {
				t.Fatalf("Confine: dropped %v, error %v", dropped, err)
			}
			if after, _ := json.Marshal(spec); string(after) != string(before) {
				t.Errorf("changed:\n%s\n%s", before, after)
			}
		})
	}
}

func TestReachIntoTheHostNeedsAGrant(t *testing.T) {
	minusOne, real := int64(-1), int64(8)
	score := -500
	for name, c := range map[string]struct {
		opt   oci.SpecOpts
		grant Grant
		names string // what the error must name
	}{
		"bind mount":           {oci.WithMounts([]specs.Mount{{Destination: "/d", Type: "bind", Source: "/etc", Options: []string{"ro"}}}), Mounts, "/etc"},
		"bind of another type": {oci.WithMounts([]specs.Mount{{Destination: "/d", Type: "tmpfs", Source: "/etc", Options: []string{"rbind"}}}), Mounts, "/etc"},
		"disk":                 {oci.WithMounts([]specs.Mount{{Destination: "/d", Type: "ext4", Source: "/dev/sda1"}}), Mounts, "/dev/sda1"},
		"overlay":              {oci.WithMounts([]specs.Mount{{Destination: "/d", Type: "overlay", Options: []string{"lowerdir=/"}}}), Mounts, "overlay"},
		"second proc":          {oci.WithMounts([]specs.Mount{{Destination: "/proc2", Type: "proc", Source: "proc"}}), Mounts, "/proc2"},
		"writable sysfs":       {oci.WithMounts([]specs.Mount{{Destination: "/sys", Type: "sysfs", Source: "sysfs"}}), Mounts, "/sys"},
		"writable cgroup":      {oci.WithMounts([]specs.Mount{{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup"}}), Mounts, "/sys/fs/cgroup"},
		"device": {change(func(s *specs.Spec) {
			s.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/kvm", Type: "c", Major: 10, Minor: 232}}
		}), Devices, "/dev/kvm"},
		"device in disguise": {change(func(s *specs.Spec) {
			s.Linux.Devices = []specs.LinuxDevice{{Path: "/etc/shadow", Type: "c", Major: 1, Minor: 3}}
		}), Devices, "/etc/shadow"},
		"all devices": {oci.WithAllDevicesAllowed, Devices, "*:*"},
		"wildcard minor": {change(func(s *specs.Spec) {
			s.Linux.Resources.Devices = []specs.LinuxDeviceCgroup{{Allow: true, Type: "b", Major: &real, Minor: &minusOne, Access: "rw"}}
		}), Devices, "b 8:*"},
		"rule without access":  {change(func(s *specs.Spec) { s.Linux.Resources.Devices = []specs.LinuxDeviceCgroup{{Allow: true, Type: "c"}} }), Devices, "c *:*"},
		"network device":       {change(func(s *specs.Spec) { s.Linux.NetDevices = map[string]specs.LinuxNetDevice{"eth7": {}} }), Devices, "eth7"},
		"capability":           {oci.WithAddedCapabilities([]string{"CAP_SYS_ADMIN"}), Capabilities, "CAP_SYS_ADMIN"},
		"ambient capability":   {change(func(s *specs.Spec) { s.Process.Capabilities.Ambient = []string{"CAP_SYS_PTRACE"} }), Capabilities, "CAP_SYS_PTRACE"},
		"capability, in small": {change(func(s *specs.Spec) { s.Process.Capabilities.Effective = []string{"cap_sys_module"} }), Capabilities, "cap_sys_module"},
		"nothing of Linux": {change(func(s *specs.Spec) {
			s.Linux = &specs.Linux{MaskedPaths: s.Linux.MaskedPaths, ReadonlyPaths: s.Linux.ReadonlyPaths}
		}), Namespaces, "pid"},
		"host network":           {oci.WithHostNamespace(specs.NetworkNamespace), Namespaces, "network"},
		"host pid":               {oci.WithHostNamespace(specs.PIDNamespace), Namespaces, "pid"},
		"host mounts":            {oci.WithHostNamespace(specs.MountNamespace), Namespaces, "mount"},
		"namespace of a path":    {oci.WithLinuxNamespace(specs.LinuxNamespace{Type: specs.NetworkNamespace, Path: "/proc/1/ns/net"}), Namespaces, "/proc/1/ns/net"},
		"user namespace by path": {oci.WithLinuxNamespace(specs.LinuxNamespace{Type: specs.UserNamespace, Path: "/proc/1/ns/user"}), Namespaces, "/proc/1/ns/user"},
		"unmasked":               {oci.WithMaskedPaths(nil), Privileges, "/proc/kcore"},
		"writable":               {oci.WithReadonlyPaths(nil), Privileges, "/proc/sys"},
		"sysctl":                 {change(func(s *specs.Spec) { s.Linux.Sysctl = map[string]string{"kernel.core_pattern": "|/x"} }), Privileges, "kernel.core_pattern"},
		"sysctl with slashes":    {change(func(s *specs.Spec) { s.Linux.Sysctl = map[string]string{"vm/overcommit_memory": "1"} }), Privileges, "vm/overcommit_memory"},
		"propagation":            {change(func(s *specs.Spec) { s.Linux.RootfsPropagation = "rshared" }), Privileges, "rshared"},
		"oom score":              {change(func(s *specs.Spec) { s.Process.OOMScoreAdj = &score }), Privileges, "-500"},
		"real time":              {change(func(s *specs.Spec) { s.Process.Scheduler = &specs.Scheduler{Policy: specs.SchedFIFO} }), Privileges, "SCHED_FIFO"},
		"no AppArmor":            {change(func(s *specs.Spec) { s.Process.ApparmorProfile = "unconfined" }), Privileges, "AppArmor"},
		"SELinux label":          {change(func(s *specs.Spec) { s.Process.SelinuxLabel = "system_u:system_r:spc_t:s0" }), Privileges, "spc_t"},
		"cache class":            {change(func(s *specs.Spec) { s.Linux.IntelRdt = &specs.LinuxIntelRdt{ClosID: "x"} }), Privileges, "resctrl"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Confine(ctrRun(t, c.opt), nil, Policy{})
			if !errdefs.IsPermissionDenied(err) {
				t.Fatalf("Confine = %v", err)
			}
			if first(err) != c.grant || !strings.Contains(err.Error(), c.names) {
				t.Errorf("refused %v", err)
			}
			if !strings.Contains(failure.Hint(err), "--allow "+string(c.grant)) {
				t.Errorf("hint %q", failure.Hint(err))
			}
			for _, g := range []Grant{c.grant, All} {
				if _, err := Confine(ctrRun(t, c.opt), nil, Policy{Allow: []Grant{g}}); err != nil {
					t.Errorf("with %s: %v", g, err)
				}
			}
			for _, g := range Grants() {
				if g == c.grant || g == All {
					continue
				}
				if _, err := Confine(ctrRun(t, c.opt), nil, Policy{Allow: []Grant{g}}); err == nil {
					t.Errorf("%s was enough", g)
				}
			}
		})
	}
}

func TestNoLinuxAtAll(t *testing.T) {
	spec := ctrRun(t)
	spec.Linux = nil
	_, err := Confine(spec, nil, Policy{})
	if !errdefs.IsPermissionDenied(err) || !strings.Contains(err.Error(), "pid namespace") || !strings.Contains(err.Error(), "/proc/kcore") {
		t.Errorf("Confine = %v", err)
	}
}

func TestPrivilegedAsksForAll(t *testing.T) {
	_, err := Confine(ctrRun(t, oci.WithPrivileged, oci.WithAllDevicesAllowed, oci.WithAddedCapabilities([]string{"CAP_SYS_ADMIN"}), oci.WithHostNamespace(specs.NetworkNamespace)), nil, Policy{})
	if !errdefs.IsPermissionDenied(err) {
		t.Fatal(err)
	}
	want := "--allow mounts --allow devices --allow capabilities --allow namespaces --allow privileges"
	if !strings.HasSuffix(failure.Hint(err), want) {
		t.Errorf("hint %q", failure.Hint(err))
	}
}

func TestSourcesGivenAreGrants(t *testing.T) {
	spec := ctrRun(t, oci.WithMounts([]specs.Mount{{Destination: "/a", Type: "bind", Source: "/x"}, {Destination: "/b", Type: "bind", Source: "/y"}}),
		oci.WithLinuxNamespace(specs.LinuxNamespace{Type: specs.NetworkNamespace, Path: "/run/netns/n"}))
	p := Policy{Mounts: []string{"/a"}, Namespaces: []specs.LinuxNamespaceType{specs.NetworkNamespace}}
	_, err := Confine(spec, nil, p)
	if !errdefs.IsPermissionDenied(err) || strings.Count(err.Error(), "\n") != 1 || !strings.Contains(err.Error(), "/b") {
		t.Errorf("Confine = %v", err)
	}
}

// TestCDIDevicesNeedAGrant: which the flag that names one is.
func TestCDIDevicesNeedAGrant(t *testing.T) {
	asked := []string{"nvidia.com/gpu=0", "nvidia.com/gpu=1"}
	for name, c := range map[string]struct {
		policy Policy
		hint   string // empty: nothing is refused
	}{
		"nothing granted":  {Policy{}, "--device nvidia.com/gpu=0 --device nvidia.com/gpu=1"},
		"one of them":      {Policy{Devices: asked[:1]}, "--device nvidia.com/gpu=1"},
		"another":          {Policy{Devices: []string{"nvidia.com/gpu=2"}, Allow: []Grant{Mounts}}, "--device nvidia.com/gpu=0 --device nvidia.com/gpu=1"},
		"both":             {Policy{Devices: asked}, ""},
		"--allow devices":  {Policy{Allow: []Grant{Devices}}, ""},
		"--allow all":      {Policy{Allow: []Grant{All}}, ""},
		"the other grants": {Policy{Allow: []Grant{Mounts, Capabilities, Namespaces, Privileges}}, "--device nvidia.com/gpu=0 --device nvidia.com/gpu=1"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Confine(ctrRun(t), asked, c.policy)
			if c.hint == "" && err != nil {
				t.Errorf("Confine = %v", err)
			}
			if c.hint != "" && (!errdefs.IsPermissionDenied(err) || !strings.HasSuffix(failure.Hint(err), "add: "+c.hint)) {
				t.Errorf("Confine = %v, want %s", err, c.hint)
			}
		})
	}
}

func TestWhatNoSnapshotGets(t *testing.T) {
	spec := ctrRun(t)
	spec.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{{Path: "/bin/sh"}}, Poststop: []specs.Hook{{Path: "/bin/sh"}}}
	spec.Root = &specs.Root{Path: "/", Readonly: true}
	spec.Annotations = map[string]string{"org.criu.config": "/x", "cdi.k8s.io/gpu": "all", "io.kubernetes.cri.sandbox-id": "s", "io.cryo.gpu.devices": "nvidia.com/gpu=all", "io.cryo.gpu.force": "true", "mine": "kept", AfterRestore: "wake", AfterRestore + ".app": "wake"}
	spec.VM, spec.Windows = &specs.VM{}, &specs.Windows{}
	spec.Linux.Seccomp = &specs.LinuxSeccomp{ListenerPath: "/run/x.sock"}
	dropped, err := Confine(spec, nil, Policy{Allow: []Grant{All}})
	if err != nil {
		t.Fatal(err)
	}
	if spec.Hooks != nil || spec.VM != nil || spec.Windows != nil || spec.Linux.Seccomp.ListenerPath != "" {
		t.Errorf("something stayed: %+v", spec)
	}
	if *spec.Root != (specs.Root{Path: "rootfs", Readonly: true}) {
		t.Errorf("root %+v", spec.Root)
	}
	if !reflect.DeepEqual(spec.Annotations, map[string]string{"mine": "kept", AfterRestore: "wake"}) {
		t.Errorf("annotations %v", spec.Annotations)
	}
	all := strings.Join(dropped, "\n")
	for _, want := range []string{"2 hooks", "org.criu.config", "cdi.k8s.io/gpu", "seccomp listener"} {
		if !strings.Contains(all, want) {
			t.Errorf("%s is not said: %v", want, dropped)
		}
	}
}

func TestLabels(t *testing.T) {
	got := Labels(map[string]string{
		"containerd.io/restart.status": "running", "containerd.io/restart.loguri": "binary:///bin/sh", "nerdctl/state-dir": "/", "io.cri-containerd.kind": "x", "team": "a", "io.cryo.gpu.force": "all", AfterRestore: "wake",
	})
	if !reflect.DeepEqual(got, map[string]string{"team": "a", AfterRestore: "wake"}) {
		t.Errorf("Labels = %v", got)
	}
	if Labels(nil) == nil {
		t.Error("Labels(nil) is nil")
	}
	if hooks := HookLabels(map[string]string{"team": "a", AfterRestore: "wake", HookTimeout: "2s", AfterRestore + ".app": "no"}); !reflect.DeepEqual(hooks, map[string]string{AfterRestore: "wake", HookTimeout: "2s"}) {
		t.Errorf("HookLabels = %v", hooks)
	}
}

func TestParseGrant(t *testing.T) {
	for _, g := range Grants() {
		if got, err := ParseGrant(string(g)); err != nil || got != g {
			t.Errorf("ParseGrant(%q) = %q, %v", g, got, err)
		}
	}
	if _, err := ParseGrant("everything"); !errdefs.IsInvalidArgument(err) {
		t.Errorf("ParseGrant: %v", err)
	}
}

// FuzzConfine: what passes without a grant has nothing that needs one, however the specification was written.
func FuzzConfine(f *testing.F) {
	for _, s := range []string{`{}`, `{"linux":{}}`, `{"process":{"capabilities":{}},"linux":{"resources":{"devices":[{"allow":true}]}}}`,
		`{"mounts":[{"destination":"/","type":"tmpfs","options":["bind"]}],"linux":{"namespaces":[{"type":"pid"}]}}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var spec specs.Spec
		if json.Unmarshal(data, &spec) != nil {
			return
		}
		if _, err := Confine(&spec, nil, Policy{}); err != nil {
			return
		}
		if spec.Hooks != nil || spec.Root == nil || spec.Root.Path != "rootfs" {
			t.Fatalf("hooks or root stayed: %s", data)
		}
		if again := Review(&spec, nil, Policy{}); len(again) > 0 {
			t.Fatalf("asks again: %v", again)
		}
		if slices.ContainsFunc(spec.Mounts, IsBindMount) {
			t.Fatalf("a bind mount passed: %s", data)
		}
	})
}

func TestReadonly(t *testing.T) {
	for options, want := range map[string]bool{"": false, "ro": true, "rro": true, "ro,rw": false, "rw,ro": true, "nosuid,ro,rrw": false, "ro,nosuid": true} {
		if got := IsReadonlyMount(strings.Split(options, ",")); got != want {
			t.Errorf("%q: %v", options, got)
		}
	}
}

// first returns the grant of the first request that an error lists.
func first(err error) Grant {
	_, list, _ := strings.Cut(err.Error(), "\n  ")
	grant, _, _ := strings.Cut(list, ":")
	return Grant(grant)
}
