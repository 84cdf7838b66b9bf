package restore

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/runtime/gpu"
	"github.com/cryo-project/cryo/shim/config"
)

// podSpec is a container's as a kubelet has it made: mounts of the host's files, and namespaces of the pod's sandbox.
func podSpec() *specs.Spec {
	return &specs.Spec{
		Process: &specs.Process{User: specs.User{UID: 1000, GID: 1000, AdditionalGids: []uint32{2, 1}}},
		Root:    &specs.Root{Path: "rootfs"},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/etc/hosts", Type: "bind", Source: "/var/lib/kubelet/pods/1/etc-hosts", Options: []string{"rbind", "rw"}},
			{Destination: "/var/run/secrets/kubernetes.io/serviceaccount", Type: "bind", Source: "/var/lib/kubelet/pods/1/token", Options: []string{"rbind", "ro"}},
		},
		Linux: &specs.Linux{Seccomp: &specs.LinuxSeccomp{DefaultAction: specs.ActErrno, Syscalls: []specs.LinuxSyscall{{Names: []string{"read"}, Action: specs.ActAllow}}}, Namespaces: []specs.LinuxNamespace{
			{Type: specs.PIDNamespace}, {Type: specs.MountNamespace}, {Type: specs.NetworkNamespace, Path: "/proc/1/ns/net"},
		}},
	}
}

// TestReconcile: what is the host's or the client's may differ, and what CRIU makes as it was must not.
func TestReconcile(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*specs.Spec)
		rules  []string
	}{
		"the same": {func(*specs.Spec) {}, nil},
		"other sources, limits, arguments and names": {func(s *specs.Spec) {
			s.Mounts[1].Source, s.Mounts[2].Source = "/var/lib/kubelet/pods/2/etc-hosts", "/var/lib/kubelet/pods/2/token"
			s.Linux.Namespaces[2].Path = "/proc/2/ns/net"
			s.Process.Args, s.Hostname, s.Linux.CgroupsPath = []string{"other"}, "other", "/other"
			s.Mounts[1].Destination = "/etc/hosts/"
			s.Process.User.AdditionalGids = []uint32{1, 2}
			slices.Reverse(s.Mounts)
		}, nil},
		"one mount less":        {func(s *specs.Spec) { s.Mounts = s.Mounts[:2] }, []string{ruleMounts}},
		"one more":              {func(s *specs.Spec) { s.Mounts = append(s.Mounts, specs.Mount{Destination: "/run", Type: "tmpfs"}) }, []string{ruleMounts}},
		"another type":          {func(s *specs.Spec) { s.Mounts[1] = specs.Mount{Destination: "/etc/hosts", Type: "tmpfs"} }, []string{ruleMounts}},
		"read-only":             {func(s *specs.Spec) { s.Mounts[1].Options = []string{"rbind", "ro"} }, []string{ruleMounts}},
		"writable":              {func(s *specs.Spec) { s.Mounts[2].Options = nil }, []string{ruleMounts}},
		"the host's pids":       {func(s *specs.Spec) { s.Linux.Namespaces = s.Linux.Namespaces[1:] }, []string{rulePIDs}},
		"read-only all the way": {func(s *specs.Spec) { s.Mounts[2].Options = []string{"rbind", "rro"} }, nil},
		"no namespace":          {func(s *specs.Spec) { s.Linux.Namespaces = s.Linux.Namespaces[:2] }, []string{ruleNamespaces}},
		"its own network":       {func(s *specs.Spec) { s.Linux.Namespaces[2].Path = "" }, []string{ruleNamespaces}},
		"the sandbox's pids":    {func(s *specs.Spec) { s.Linux.Namespaces[0].Path = "/proc/1/ns/pid" }, []string{rulePIDs}},
		"no linux":              {func(s *specs.Spec) { s.Linux = nil }, []string{ruleNamespaces, ruleNamespaces, rulePIDs, ruleSeccomp}},
		"a terminal":            {func(s *specs.Spec) { s.Process.Terminal = true }, []string{ruleTerminal}},
		"root":                  {func(s *specs.Spec) { s.Process.User = specs.User{} }, []string{ruleUser}},
		"another group":         {func(s *specs.Spec) { s.Process.User.AdditionalGids = []uint32{1} }, []string{ruleUser}},
		"no process":            {func(s *specs.Spec) { s.Process = nil }, []string{ruleUser}},
		"read-only root":        {func(s *specs.Spec) { s.Root.Readonly = true }, []string{ruleReadonly}},
		"no seccomp":            {func(s *specs.Spec) { s.Linux.Seccomp = nil }, []string{ruleSeccomp}},
		"another profile":       {func(s *specs.Spec) { s.Linux.Seccomp.DefaultAction = specs.ActAllow }, []string{ruleSeccomp}},
		"mappings":              {func(s *specs.Spec) { s.Linux.UIDMappings = []specs.LinuxIDMapping{{HostID: 1, Size: 1}} }, []string{ruleUserMaps}},
	} {
		is := podSpec()
		test.change(is)
		before, _ := json.Marshal(is)
		var rules []string
		for _, f := range reconcile(podSpec(), is, gpu.CDIEdits{}) {
			rules = append(rules, f.Rule)
			if !f.Fatal || f.Problem == "" || f.Hint == "" || strings.Contains(f.Problem, "%!") {
				t.Errorf("%s: %+v", name, f)
			}
		}
		if !slices.Equal(rules, test.rules) {
			t.Errorf("%s: %v, want %v", name, rules, test.rules)
		}
		if after, _ := json.Marshal(is); string(after) != string(before) {
			t.Errorf("%s: the specification was changed:\n%s\n%s", name, before, after)
		}
	}
}

// TestReconcileGPUs: the snapshot's specification is without what CDI devices had put there, where their names were known, and a new container has what its client has put there.
func TestReconcileGPUs(t *testing.T) {
	dir := t.TempDir()
	file := `{"cdiVersion":"0.7.0","kind":"nvidia.com/gpu","devices":[{"name":"1","containerEdits":{"deviceNodes":[{"path":"/dev/nvidia1","type":"c","major":195,"minor":1}]}}],
		"containerEdits":{"additionalGids":[44],"mounts":[{"hostPath":"/lib/libcuda.so.2","containerPath":"/lib/libcuda.so.2","options":["ro","bind"]}]}}`
	if err := os.WriteFile(filepath.Join(dir, "nvidia.json"), []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	c := config.GPU{CDI: []string{dir}}
	driver := func(version string) specs.Mount {
		return specs.Mount{Destination: "/lib/libcuda.so." + version, Type: "bind", Source: "/lib/libcuda.so." + version, Options: []string{"ro", "bind"}}
	}
	node := func(path string, minor int64) specs.LinuxDevice {
		return specs.LinuxDevice{Path: path, Type: "c", Major: 195, Minor: minor}
	}
	inject := func(s *specs.Spec) {
		if err := gpu.OpenCDI(dir).Inject(s, []string{"nvidia.com/gpu=1"}); err != nil {
			t.Fatal(err)
		}
	}
	for name, test := range map[string]struct {
		was, is func(*specs.Spec)
		mounts  []string // of the snapshot's GPUs
		rules   []string
	}{
		"the files that it had":               {nil, func(s *specs.Spec) { s.Mounts = append(s.Mounts, driver("1")) }, []string{"/lib/libcuda.so.1"}, nil},
		"other files by CDI":                  {nil, inject, nil, nil},
		"the same by CDI, and before by hand": {func(s *specs.Spec) { s.Mounts = append(s.Mounts, driver("2")) }, inject, nil, nil},
		"other files by hand":                 {nil, func(s *specs.Spec) { s.Mounts = append(s.Mounts, driver("3")) }, []string{"/lib/libcuda.so.1"}, []string{ruleMounts}},
		"writable": {func(s *specs.Spec) { s.Mounts = append(s.Mounts, driver("1")) }, func(s *specs.Spec) {
			s.Mounts = append(s.Mounts, driver("1"))
			s.Mounts[len(s.Mounts)-1].Options = []string{"bind"}
		}, nil, []string{ruleMounts}},
		"another group": {nil, func(s *specs.Spec) { s.Process.User.AdditionalGids = append(s.Process.User.AdditionalGids, 44) }, nil, []string{ruleUser}},
		"a node of another GPU": {nil, func(s *specs.Spec) {
			s.Linux.Devices = []specs.LinuxDevice{node("/dev/nvidiactl", 255), node("/dev/nvidia-uvm", 0), node("/dev/nvidia0", 1)}
		}, nil, []string{ruleGPUNodes}},
		"a mount of another GPU's": {func(s *specs.Spec) {
			s.Mounts = append(s.Mounts, specs.Mount{Destination: "/dev/nvidia0", Type: "bind"})
		}, func(s *specs.Spec) {
			s.Mounts = append(s.Mounts, specs.Mount{Destination: "/dev/nvidia0", Type: "bind", Source: "/dev/nvidia1"})
		}, nil, []string{ruleGPUNodes}},
	} {
		was, is := podSpec(), podSpec()
		if test.was != nil {
			test.was(was)
		}
		test.is(is)
		byGPUs, err := editsOf(c, &image.GPU{Mounts: test.mounts}, is)
		if err != nil {
			t.Fatal(err)
		}
		var rules []string
		for _, f := range reconcile(was, is, byGPUs) {
			rules = append(rules, f.Rule)
			if !f.Fatal || f.Problem == "" || f.Hint == "" || strings.Contains(f.Problem, "%!") {
				t.Errorf("%s: %+v", name, f)
			}
		}
		if !slices.Equal(rules, test.rules) {
			t.Errorf("%s: %v, want %v", name, rules, test.rules)
		}
	}
}

// TestReconcileShared: a pod whose containers share their process ids is refused although the snapshot's was such a one.
func TestReconcileShared(t *testing.T) {
	s := podSpec()
	s.Linux.Namespaces[0].Path = "/proc/1/ns/pid"
	if found := reconcile(s, s, gpu.CDIEdits{}); len(found) != 1 || found[0].Rule != rulePIDs {
		t.Errorf("found %+v", found)
	}
}
