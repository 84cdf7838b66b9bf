package trust

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image/failure"
)

// namesIn returns the names of all fields of a type, spelled as in the table of fields.
func namesIn(t reflect.Type, name string, known func(name string) bool) (names []string) {
	if known(name) {
		return []string{name}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return namesIn(t.Elem(), name, known)
	case reflect.Slice:
		return namesIn(t.Elem(), name+"[]", known)
	case reflect.Map:
		return namesIn(t.Elem(), name+"{}", known)
	case reflect.Struct:
		for i := range t.NumField() {
			f := t.Field(i)
			if f.Anonymous {
				names = append(names, namesIn(f.Type, name, known)...)
				continue
			}
			key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			names = append(names, namesIn(f.Type, strings.TrimPrefix(name+"."+key, "."), known)...)
		}
		return names
	}
	return []string{name}
}

// TestSpecificationTable: the table has a line for each field of the runtime specification, and none for another, with a kind that there is.
func TestSpecificationTable(t *testing.T) {
	byName, _ := fields()
	is := func(name string) bool { _, ok := byName[name]; return ok }
	names := namesIn(reflect.TypeFor[specs.Spec](), "", is)
	if len(names) < 150 {
		t.Fatalf("only %d fields", len(names))
	}
	for _, name := range names {
		if !is(name) {
			t.Errorf("runtime-spec has %s, and specification.tsv has no line for it", name)
		}
	}
	for name, f := range byName {
		if !slices.Contains(names, name) {
			t.Errorf("specification.tsv has %s, and runtime-spec does not", name)
		}
		switch f.kind {
		case anyField, limitField, ownField, dropField:
		case grantField:
			if f.last != string(Nothing) && !slices.Contains(Grants(), Grant(f.last)) {
				t.Errorf("%s: there is no grant %q", name, f.last)
			}
		case ruleField:
			if deciders[f.last] == nil || !slices.Contains(order, f.last) {
				t.Errorf("%s: there is no rule %q", name, f.last)
			}
		default:
			t.Errorf("%s: there is no kind %q", name, f.kind)
		}
	}
	if len(order) != len(deciders) {
		t.Errorf("%d rules, and %d in order", len(deciders), len(order))
	}
}

// TestSpecificationDefaults: what containerd hides by default is hidden without a grant, but for files of single CPUs.
func TestSpecificationDefaults(t *testing.T) {
	l := ctrRun(t).Linux
	for _, masked := range l.MaskedPaths {
		if !slices.Contains(append(slices.Clone(maskedPaths), newerMaskedPaths...), masked) && !strings.HasPrefix(masked, "/sys/devices/system/cpu/cpu") {
			t.Errorf("containerd hides %s", masked)
		}
	}
	if !slices.Equal(l.ReadonlyPaths, readonlyPaths) {
		t.Errorf("containerd makes %q read-only", l.ReadonlyPaths)
	}
	old := ctrRun(t, oci.WithMaskedPaths(maskedPaths))
	if _, err := Confine(old, nil, Policy{}); err != nil {
		t.Fatal(err)
	}
	if left := without(append(slices.Clone(maskedPaths), newerMaskedPaths...), old.Linux.MaskedPaths); len(left) > 0 {
		t.Errorf("%q are not hidden", left)
	}
	open := ctrRun(t, oci.WithMaskedPaths(nil))
	if _, err := Confine(open, nil, Policy{Allow: []Grant{Privileges}}); err != nil || len(open.Linux.MaskedPaths) > 0 {
		t.Errorf("%v, %q", err, open.Linux.MaskedPaths)
	}
}

func number64[T any](n T) *T { return &n }

func resources(f func(*specs.LinuxResources)) oci.SpecOpts {
	return change(func(s *specs.Spec) { f(s.Linux.Resources) })
}

// TestLimitsNeedNoGrant: what only limits a container is free.
func TestLimitsNeedNoGrant(t *testing.T) {
	for name, opt := range map[string]oci.SpecOpts{
		"unified": resources(func(r *specs.LinuxResources) {
			r.Unified = map[string]string{"memory.max": "1073741824", "memory.high": "max", "cpu.max": "50000 100000", "pids.max": "10", "io.max": "8:0 rbps=1 wbps=max", "hugetlb.2MB.max": "0", "hugetlb.1GB.rsvd.max": "0"}
		}),
		"huge pages": resources(func(r *specs.LinuxResources) {
			r.HugepageLimits = []specs.LinuxHugepageLimit{{Pagesize: "2MB", Limit: 1}}
		}),
		"RDMA": resources(func(r *specs.LinuxResources) {
			r.Rdma = map[string]specs.LinuxRdma{"mlx5_0": {HcaHandles: number64(uint32(1))}}
		}),
		"memory": resources(func(r *specs.LinuxResources) {
			r.Memory = &specs.LinuxMemory{Limit: number64(int64(1 << 30)), Swap: number64(int64(-1)), Swappiness: number64(uint64(0)), DisableOOMKiller: number64(false)}
		}),
		"CPU": resources(func(r *specs.LinuxResources) {
			r.CPU = &specs.LinuxCPU{Shares: number64(uint64(8192)), Quota: number64(int64(-1)), Cpus: "0-3,7", Mems: "0", Idle: number64(int64(1))}
		}),
		"block devices": resources(func(r *specs.LinuxResources) {
			r.BlockIO = &specs.LinuxBlockIO{Weight: number64(uint16(10)), ThrottleReadBpsDevice: []specs.LinuxThrottleDevice{{LinuxBlockIODevice: specs.LinuxBlockIODevice{Major: 8}, Rate: 1}}}
		}),
		"scheduling": change(func(s *specs.Spec) { s.Process.Scheduler = &specs.Scheduler{Policy: specs.SchedBatch, Nice: 5} }),
		"I/O priority": change(func(s *specs.Spec) {
			s.Process.IOPriority = &specs.LinuxIOPriority{Class: specs.IOPRIO_CLASS_BE, Priority: 4}
		}),
		"memory policy": change(func(s *specs.Spec) {
			s.Linux.MemoryPolicy = &specs.LinuxMemoryPolicy{Mode: specs.MpolInterleave, Nodes: "0-1"}
		}),
		"rlimits": change(func(s *specs.Spec) {
			s.Process.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Hard: 1 << 20, Soft: 1 << 20}, {Type: "RLIMIT_MEMLOCK", Hard: 1<<64 - 1, Soft: 1<<64 - 1}, {Type: "RLIMIT_RTPRIO"}}
		}),
		"AppArmor of CRI": change(func(s *specs.Spec) { s.Process.ApparmorProfile = "cri-containerd.apparmor.d" }),
	} {
		if _, err := Confine(ctrRun(t, opt), nil, Policy{AppArmor: strings.HasPrefix(name, "AppArmor")}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestFavoursNeedAGrant: what takes from others needs the grant privileges, and no other is enough.
func TestFavoursNeedAGrant(t *testing.T) {
	for name, opt := range map[string]oci.SpecOpts{
		"real-time runtime": resources(func(r *specs.LinuxResources) { r.CPU = &specs.LinuxCPU{RealtimeRuntime: number64(int64(950000))} }),
		"real-time period":  resources(func(r *specs.LinuxResources) { r.CPU = &specs.LinuxCPU{RealtimePeriod: number64(uint64(1000000))} }),
		"no OOM killer":     resources(func(r *specs.LinuxResources) { r.Memory = &specs.LinuxMemory{DisableOOMKiller: number64(true)} }),
		"class of packets":  resources(func(r *specs.LinuxResources) { r.Network = &specs.LinuxNetwork{ClassID: number64(uint32(1))} }),
		"priority of packets": resources(func(r *specs.LinuxResources) {
			r.Network = &specs.LinuxNetwork{Priorities: []specs.LinuxInterfacePriority{{Name: "eth0", Priority: 7}}}
		}),
		"memory that stays": resources(func(r *specs.LinuxResources) { r.Unified = map[string]string{"memory.min": "max"} }),
		"latency":           resources(func(r *specs.LinuxResources) { r.Unified = map[string]string{"io.latency": "8:0 target=1"} }),
		"limit RTPRIO":      oci.WithRlimit(&specs.POSIXRlimit{Type: "RLIMIT_RTPRIO", Hard: 99, Soft: 99}),
		"limit NICE":        oci.WithRlimit(&specs.POSIXRlimit{Type: "RLIMIT_NICE", Hard: 40}),
		"nice":              change(func(s *specs.Spec) { s.Process.Scheduler = &specs.Scheduler{Policy: specs.SchedOther, Nice: -20} }),
		"another scheduler": change(func(s *specs.Spec) { s.Process.Scheduler = &specs.Scheduler{Policy: "SCHED_EXT"} }),
		"deadline":          change(func(s *specs.Spec) { s.Process.Scheduler = &specs.Scheduler{Runtime: 1, Deadline: 2, Period: 3} }),
		"real-time reads":   change(func(s *specs.Spec) { s.Process.IOPriority = &specs.LinuxIOPriority{Class: specs.IOPRIO_CLASS_RT} }),
		"AppArmor profile":  change(func(s *specs.Spec) { s.Process.ApparmorProfile = "chrome" }),
		"label of files":    change(func(s *specs.Spec) { s.Linux.MountLabel = "system_u:object_r:etc_t:s0" }),
		"owners of files":   oci.WithMounts([]specs.Mount{{Destination: "/d", Type: "tmpfs", UIDMappings: []specs.LinuxIDMapping{{HostID: 1000, Size: 1}}}}),
		"a mask less":       oci.WithMaskedPaths(slices.DeleteFunc(slices.Clone(maskedPaths), func(p string) bool { return p == "/proc/scsi" })),
	} {
		t.Run(name, func(t *testing.T) {
			for _, g := range Grants() {
				_, err := Confine(ctrRun(t, opt), nil, Policy{Allow: []Grant{g}})
				if enough := g == Privileges || g == All; (err == nil) != enough {
					t.Errorf("with %s: %v", g, err)
				}
			}
		})
	}
	spread := []specs.Mount{{Destination: "/d", Type: "bind", Source: "/d", Options: []string{"rbind", "rshared"}}}
	if _, err := Confine(ctrRun(t, oci.WithMounts(spread)), nil, Policy{Allow: []Grant{Mounts}}); err == nil {
		t.Error("a shared bind mount")
	}
	if _, err := Confine(ctrRun(t), nil, Policy{AppArmor: true}); err == nil || !strings.Contains(err.Error(), "no AppArmor profile") {
		t.Errorf("without a profile, where containers have one: %v", err)
	}
}

// TestNothingAllows: no grant is enough for what is no limit at all, and for what is not known.
func TestNothingAllows(t *testing.T) {
	unified := func(file string) oci.SpecOpts {
		return resources(func(r *specs.LinuxResources) { r.Unified = map[string]string{file: "1"} })
	}
	for name, opt := range map[string]oci.SpecOpts{
		"processes of the host": unified("cgroup.procs"), "threads": unified("cgroup.threads"), "controllers": unified("cgroup.subtree_control"), "freezer": unified("cgroup.freeze"),
		"a path": unified("../../x"), "a path in a size": unified("hugetlb.../2MB.max"), "a pattern": unified("hugetlb.*.max"), "an unknown file": unified("memory.reclaim"), "no file": unified(""),
		"size of huge pages": resources(func(r *specs.LinuxResources) { r.HugepageLimits = []specs.LinuxHugepageLimit{{Pagesize: "/../2MB"}} }),
		"RDMA device":        resources(func(r *specs.LinuxResources) { r.Rdma = map[string]specs.LinuxRdma{"x\ny": {}} }),
		"CPUs":               resources(func(r *specs.LinuxResources) { r.CPU = &specs.LinuxCPU{Cpus: "0\n/../x"} }),
		"class of caches":    change(func(s *specs.Spec) { s.Linux.IntelRdt = &specs.LinuxIntelRdt{ClosID: "../x"} }),
		"the class above":    change(func(s *specs.Spec) { s.Linux.IntelRdt = &specs.LinuxIntelRdt{ClosID: ".."} }),
		"unknown limit":      oci.WithRlimit(&specs.POSIXRlimit{Type: "RLIMIT_X"}),
		"user by name":       change(func(s *specs.Spec) { s.Process.User.Username = "x" }),
	} {
		_, err := Confine(ctrRun(t, opt), nil, Policy{Allow: []Grant{All}})
		if !errdefs.IsPermissionDenied(err) || first(err) != Nothing || strings.Contains(failure.Hint(err), "--allow") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestKnown refuses fields that this version does not know, wherever they are and however they are spelled.
func TestKnown(t *testing.T) {
	plain, err := json.Marshal(ctrRun(t, oci.WithMemoryLimit(1), oci.WithAnnotations(map[string]string{"any": "thing"})))
	if err != nil {
		t.Fatal(err)
	}
	if found := Known(plain); len(found) > 0 {
		t.Errorf("%v", found)
	}
	for text, name := range map[string]string{
		`{"future": {"x": 1}}`:                                `"future"`,
		`{"linux": {"landlock": {}}}`:                         `"linux.landlock"`,
		`{"Linux": {"sysctl": {"a": "b"}}}`:                   `"Linux"`,
		`{"mounts": [{"destination": "/a"}, {"later": 1}]}`:   `"mounts[].later"`,
		`{"linux": {"netDevices": {"eth0": {"address": 1}}}}`: `"linux.netDevices{}.address"`,
		`{"linux": {"resources": {"rdma": {"d": {"x": 1}}}}}`: `"linux.resources.rdma{}.x"`,
	} {
		found := Known([]byte(text))
		if len(found) != 1 || !strings.Contains(found[0].What, name) || Refuse(Policy{Allow: []Grant{All}}.Judge(found)) == nil {
			t.Errorf("%s: %v", text, found)
		}
	}
}

func TestHasAppArmor(t *testing.T) {
	for list, want := range map[string]bool{"": false, "chrome (unconfined)\nman_groff (enforce)\n": false, "x (enforce)\ncri-containerd.apparmor.d (enforce)\n": true, "nerdctl-default-2 (enforce)\n": false} {
		if HasAppArmor(list) != want {
			t.Errorf("%q", list)
		}
	}
}
