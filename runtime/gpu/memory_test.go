package gpu

import (
	"testing"

	"github.com/cryo-project/cryo/runtime/gpu/device"
)

func TestRoom(t *testing.T) {
	for _, test := range []struct {
		name   string
		cgroup string
		files  map[string]string
		group  string
		left   int64
	}{
		{name: "no limit", cgroup: "0::/a/b\n", files: map[string]string{"sys/fs/cgroup/a/b/memory.max": "max\n"}},
		{name: "its own", cgroup: "0::/a/b\n", files: map[string]string{
			"sys/fs/cgroup/a/b/memory.max": "1000\n", "sys/fs/cgroup/a/b/memory.current": "600\n",
			"sys/fs/cgroup/a/b/memory.stat": "anon 100\nactive_file 200\ninactive_file 100\n",
		}, group: "/a/b", left: 700},
		{name: "one above is tighter", cgroup: "0::/a/b\n", files: map[string]string{
			"sys/fs/cgroup/a/b/memory.max": "1000\n", "sys/fs/cgroup/a/b/memory.current": "600\n",
			"sys/fs/cgroup/a/memory.max": "900\n", "sys/fs/cgroup/a/memory.current": "800\n",
		}, group: "/a", left: 100},
		{name: "version 1", cgroup: "5:cpu,cpuacct:/x\n4:memory:/c\n0::/other\n", files: map[string]string{
			"sys/fs/cgroup/memory/c/memory.limit_in_bytes": "1000\n", "sys/fs/cgroup/memory/c/memory.usage_in_bytes": "500\n",
			"sys/fs/cgroup/memory/c/memory.stat":         "total_active_file 100\ntotal_inactive_file 50\nactive_file 9999\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
		}, group: "/c", left: 650},
		{name: "files that are not there", cgroup: "0::/gone\n"},
		{name: "more cache than use", cgroup: "0::/a\n", files: map[string]string{
			"sys/fs/cgroup/a/memory.max": "1000\n", "sys/fs/cgroup/a/memory.current": "100\n", "sys/fs/cgroup/a/memory.stat": "active_file 200\n",
		}, group: "/a", left: 1000},
	} {
		t.Run(test.name, func(t *testing.T) {
			tr := newTree(t)
			tr.process(101)
			tr.write("proc/101/cgroup", test.cgroup)
			for path, text := range test.files {
				tr.write(path, text)
			}
			group, left, err := proc{tr.root}.room(101)
			if err != nil || group != test.group || left != test.left {
				t.Errorf("got %q, %d, %v", group, left, err)
			}
		})
	}
}

// TestNeed: where the driver does not say what a process holds, all that nobody else holds counts.
func TestNeed(t *testing.T) {
	s := examination{
		facts: device.Facts{
			Devices: []device.Device{{UUID: uuidA, Memory: 100, Free: 30}},
			Uses:    []device.DeviceUse{{PID: 1, UUID: uuidA, Memory: 20}, {PID: 2, UUID: uuidA}},
		},
		processes: []cudaProcess{{uses: []device.DeviceUse{{PID: 2, UUID: uuidA}}}},
	}
	if got := s.need(); got != 50 {
		t.Errorf("got %d", got)
	}
	s.processes[0].uses[0].Memory = 40
	if got := s.need(); got != 40 {
		t.Errorf("got %d", got)
	}
}

// TestHostMemoryOfTheCgroup refuses what the container's own limit would not bear.
func TestHostMemoryOfTheCgroup(t *testing.T) {
	w := newWorld(t, 101)
	w.write("sys/fs/cgroup/c/memory.max", "1073741824\n")
	w.write("sys/fs/cgroup/c/memory.current", "1048576\n")
	found, err := hostMemory(subjectOf(t, w, []int{101}))
	if err != nil || len(found) != 1 {
		t.Fatalf("got %v, %v", found, err)
	}
	w.write("sys/fs/cgroup/c/memory.max", "2147483648\n")
	if found, err := hostMemory(subjectOf(t, w, []int{101})); err != nil || len(found) != 0 {
		t.Errorf("got %v, %v", found, err)
	}
}
