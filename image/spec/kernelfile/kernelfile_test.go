package kernelfile

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestHarmless(t *testing.T) {
	for _, c := range []struct {
		fileSystem, name string
		mode, flags      uint32
		harmless         bool
	}{
		{Proc, "/meminfo", unix.S_IFREG, unix.O_RDONLY, true},
		{Proc, "/1/stat", unix.S_IFREG, unix.O_RDONLY, true},
		{Proc, "/1/task/7/status", unix.S_IFREG, unix.O_RDONLY, true},
		{Proc, "/1/mountinfo", unix.S_IFREG, unix.O_RDONLY, true},
		{Proc, "/1/net/tcp", unix.S_IFREG, unix.O_RDONLY, true},
		{Proc, "/1/net/stat/rt_cache", unix.S_IFREG, unix.O_RDONLY, true},
		{Proc, "/1/oom_score_adj", unix.S_IFREG, unix.O_RDWR, true},
		{Proc, "/sys/kernel/random/boot_id", unix.S_IFREG, unix.O_RDONLY, true},
		{Proc, "/sys/kernel/core_pattern", unix.S_IFREG, unix.O_WRONLY, false},
		{Proc, "/pressure/memory", unix.S_IFREG, unix.O_RDONLY, true},
		{Proc, "/pressure/memory", unix.S_IFREG, unix.O_RDWR, false},
		{Proc, "/kmsg", unix.S_IFREG, unix.O_RDONLY, false},
		{Proc, "/kallsyms", unix.S_IFREG, unix.O_RDONLY, false},
		{Proc, "/kcore", unix.S_IFREG, unix.O_RDONLY, false},
		{Proc, "/modules", unix.S_IFREG, unix.O_RDONLY, false},
		{Proc, "/iomem", unix.S_IFREG, unix.O_RDONLY, false},
		{Proc, "/1/mem", unix.S_IFREG, unix.O_RDONLY, false},
		{Proc, "/1/pagemap", unix.S_IFREG, unix.O_RDONLY, false},
		{Proc, "/1/stack", unix.S_IFREG, unix.O_RDONLY, false},
		{Proc, "/1/task/1/stack", unix.S_IFREG, unix.O_RDONLY, false},
		{Proc, "/1/stat/../stack", unix.S_IFREG, unix.O_RDONLY, false},
		{Proc, "/1/uid_map", unix.S_IFREG, unix.O_RDWR, false},
		{Proc, "/1/clear_refs", unix.S_IFREG, unix.O_WRONLY, false},
		{Proc, "/1/fd", unix.S_IFDIR, unix.O_RDONLY, true},
		{Proc, "/kmsg", unix.S_IFREG, unix.O_PATH, true},
		{Proc, "/1/what-comes", unix.S_IFREG, unix.O_RDONLY, false},
		{Proc, "/what-comes", unix.S_IFREG, unix.O_RDONLY, false},
		{Sysfs, "/devices/system/cpu/online", unix.S_IFREG, unix.O_RDONLY, true},
		{Sysfs, "/devices/virtual/net/lo/statistics/rx_bytes", unix.S_IFREG, unix.O_RDONLY, true},
		{Sysfs, "/kernel/mm/transparent_hugepage/enabled", unix.S_IFREG, unix.O_RDWR, false},
		{Sysfs, "/kernel/notes", unix.S_IFREG, unix.O_RDONLY, false},
		{Sysfs, "/module/x/sections/.text", unix.S_IFREG, unix.O_RDONLY, false},
		{Cgroup, "/memory.current", unix.S_IFREG, unix.O_RDONLY, true},
		{"cgroup2", "/memory.current", unix.S_IFREG, unix.O_RDONLY, true},
		{"cgroup2", "/cgroup.procs", unix.S_IFREG, unix.O_RDWR, false},
		{"ext4", "/a", unix.S_IFREG, unix.O_RDONLY, false},
	} {
		if got := Harmless(c.fileSystem, c.name, c.mode, c.flags); got != c.harmless {
			t.Errorf("%s %s, mode %o, flags %#o: %t", c.fileSystem, c.name, c.mode, c.flags, got)
		}
	}
}
