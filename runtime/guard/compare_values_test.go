package guard

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// tree makes files of cgroups.
func tree(t *testing.T, files map[string]string) (root string) {
	t.Helper()
	root = t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestValues(t *testing.T) {
	of := func(f func(*specs.LinuxResources)) *specs.LinuxResources {
		r := &specs.LinuxResources{}
		f(r)
		return r
	}
	limited := of(func(r *specs.LinuxResources) {
		r.Memory = &specs.LinuxMemory{Limit: new(int64(4096)), Swap: new(int64(8192))}
		r.Pids = &specs.LinuxPids{Limit: new(int64(10))}
		r.CPU = &specs.LinuxCPU{Quota: new(int64(50000))}
	})
	device := func(rules ...specs.LinuxDeviceCgroup) *specs.LinuxResources {
		return &specs.LinuxResources{Devices: rules}
	}
	v1 := map[string]string{"memory": "/c", "pids": "/c", "cpu": "/c", "devices": "/c", "": "/c"}
	for name, test := range map[string]struct {
		groups map[string]string
		files  map[string]string
		spec   *specs.LinuxResources
		differ string // empty: nothing
	}{
		"as specified": {v1, map[string]string{
			"memory/c/memory.limit_in_bytes": "4096", "memory/c/memory.memsw.limit_in_bytes": "4096", "pids/c/pids.max": "9", "cpu/c/cpu.cfs_quota_us": "50000",
			"cpu/c/cpu.cfs_period_us": "100000", "cpu/c/cpu.rt_runtime_us": "0", "memory/c/memory.oom_control": "oom_kill_disable 0\nunder_oom 0", "devices/c/devices.list": "c *:* m\nc 1:3 rwm\nc 136:* rwm",
		}, limited, ""},
		"nothing specified":      {v1, map[string]string{"memory/c/memory.limit_in_bytes": "9223372036854771712", "pids/c/pids.max": "max"}, nil, ""},
		"memory":                 {v1, map[string]string{"memory/c/memory.limit_in_bytes": "8192"}, limited, "memory.limit_in_bytes of 8192"},
		"swap":                   {v1, map[string]string{"memory/c/memory.memsw.limit_in_bytes": "12288"}, limited, "memory.memsw.limit_in_bytes"},
		"processes":              {v1, map[string]string{"pids/c/pids.max": "max"}, limited, "pids.max of max"},
		"CPU":                    {v1, map[string]string{"cpu/c/cpu.cfs_quota_us": "-1", "cpu/c/cpu.cfs_period_us": "100000"}, limited, "of the CPUs' time"},
		"CPU by the period":      {v1, map[string]string{"cpu/c/cpu.cfs_quota_us": "50000", "cpu/c/cpu.cfs_period_us": "1000"}, limited, "of the CPUs' time"},
		"real time":              {v1, map[string]string{"cpu/c/cpu.rt_runtime_us": "950000"}, nil, "real-time"},
		"no OOM killer":          {v1, map[string]string{"memory/c/memory.oom_control": "oom_kill_disable 1\nunder_oom 0"}, nil, "OOM killer"},
		"all devices":            {v1, map[string]string{"devices/c/devices.list": "a *:* rwm"}, nil, "a *:* rwm"},
		"all devices, specified": {v1, map[string]string{"devices/c/devices.list": "a *:* rwm"}, device(specs.LinuxDeviceCgroup{Allow: true, Access: "rwm"}), ""},
		"a disk":                 {v1, map[string]string{"devices/c/devices.list": "b 8:0 rw"}, device(specs.LinuxDeviceCgroup{Allow: true, Type: "c", Access: "rwm"}), "b 8:0 rw"},
		"written, where read":    {v1, map[string]string{"devices/c/devices.list": "b 8:0 rw"}, device(specs.LinuxDeviceCgroup{Allow: true, Type: "b", Access: "r"}), "b 8:0 rw"},
		"version 2":              {map[string]string{"": "/c"}, map[string]string{"c/memory.max": "4096", "c/pids.max": "10", "c/cpu.max": "50000 100000", "c/memory.min": "0"}, limited, ""},
		"memory of version 2":    {map[string]string{"": "/c"}, map[string]string{"c/memory.max": "max"}, limited, "memory.max of max"},
		"CPU of version 2":       {map[string]string{"": "/c"}, map[string]string{"c/cpu.max": "max 100000"}, limited, "of the CPUs' time"},
		"protection":             {map[string]string{"": "/c"}, map[string]string{"c/memory.low": "max"}, nil, "memory.low"},
		"protection, specified":  {map[string]string{"": "/c"}, map[string]string{"c/memory.low": "4096"}, &specs.LinuxResources{Unified: map[string]string{"memory.low": "4096"}}, ""},
	} {
		k := &check{found: map[string]bool{}, cgroups: test.groups}
		k.Spec = &specs.Spec{Linux: &specs.Linux{Resources: test.spec}}
		if err := k.values(tree(t, test.files)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := strings.Join(k.differences, "; "); (got == "") != (test.differ == "") || !strings.Contains(got, test.differ) {
			t.Errorf("%s: %q, want %q", name, got, test.differ)
		}
	}
}

func TestLacks(t *testing.T) {
	for _, test := range []struct {
		kind    string
		options []string
		want    bool
	}{{"tmpfs", []string{"nosuid"}, true}, {"tmpfs", nil, false}, {"bind", []string{"rnosuid"}, true}, {"bind", []string{"nosuid", "suid"}, false}, {"bind", []string{"suid", "nosuid"}, true}, {"cgroup", []string{"nosuid"}, false}} {
		if got := lacks(specs.Mount{Type: test.kind, Options: test.options}, "nosuid"); got != test.want {
			t.Errorf("%+v: %v", test, got)
		}
	}
}
