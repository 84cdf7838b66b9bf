package trust

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
		{ProcFS, "/meminfo", unix.S_IFREG, unix.O_RDONLY, true},
		{ProcFS, "/1/stat", unix.S_IFREG, unix.O_RDONLY, true},
		{ProcFS, "/1/task/7/status", unix.S_IFREG, unix.O_RDONLY, true},
		{ProcFS, "/1/mountinfo", unix.S_IFREG, unix.O_RDONLY, true},
		{ProcFS, "/1/net/tcp", unix.S_IFREG, unix.O_RDONLY, true},
		{ProcFS, "/1/net/stat/rt_cache", unix.S_IFREG, unix.O_RDONLY, true},
		{ProcFS, "/1/oom_score_adj", unix.S_IFREG, unix.O_RDWR, true},
		{ProcFS, "/sys/kernel/random/boot_id", unix.S_IFREG, unix.O_RDONLY, true},
		{ProcFS, "/sys/kernel/core_pattern", unix.S_IFREG, unix.O_WRONLY, false},
		{ProcFS, "/pressure/memory", unix.S_IFREG, unix.O_RDONLY, true},
		{ProcFS, "/pressure/memory", unix.S_IFREG, unix.O_RDWR, false},
		{ProcFS, "/kmsg", unix.S_IFREG, unix.O_RDONLY, false},
		{ProcFS, "/kallsyms", unix.S_IFREG, unix.O_RDONLY, false},
		{ProcFS, "/kcore", unix.S_IFREG, unix.O_RDONLY, false},
		{ProcFS, "/modules", unix.S_IFREG, unix.O_RDONLY, false},
		{ProcFS, "/iomem", unix.S_IFREG, unix.O_RDONLY, false},
		{ProcFS, "/1/mem", unix.S_IFREG, unix.O_RDONLY, false},
		{ProcFS, "/1/pagemap", unix.S_IFREG, unix.O_RDONLY, false},
		{ProcFS, "/1/stack", unix.S_IFREG, unix.O_RDONLY, false},
		{ProcFS, "/1/task/1/stack", unix.S_IFREG, unix.O_RDONLY, false},
		{ProcFS, "/1/stat/../stack", unix.S_IFREG, unix.O_RDONLY, false},
		{ProcFS, "/1/uid_map", unix.S_IFREG, unix.O_RDWR, false},
		{ProcFS, "/1/clear_refs", unix.S_IFREG, unix.O_WRONLY, false},
		{ProcFS, "/1/fd", unix.S_IFDIR, unix.O_RDONLY, true},
		{ProcFS, "/kmsg", unix.S_IFREG, unix.O_PATH, true},
		{ProcFS, "/1/what-comes", unix.S_IFREG, unix.O_RDONLY, false},
		{ProcFS, "/what-comes", unix.S_IFREG, unix.O_RDONLY, false},
		{SysFS, "/devices/system/cpu/online", unix.S_IFREG, unix.O_RDONLY, true},
		{SysFS, "/devices/virtual/net/lo/statistics/rx_bytes", unix.S_IFREG, unix.O_RDONLY, true},
		{SysFS, "/kernel/mm/transparent_hugepage/enabled", unix.S_IFREG, unix.O_RDWR, false},
		{SysFS, "/kernel/notes", unix.S_IFREG, unix.O_RDONLY, false},
		{SysFS, "/module/x/sections/.text", unix.S_IFREG, unix.O_RDONLY, false},
		{CgroupFS, "/memory.current", unix.S_IFREG, unix.O_RDONLY, true},
		{"cgroup2", "/memory.current", unix.S_IFREG, unix.O_RDONLY, true},
		{"cgroup2", "/cgroup.procs", unix.S_IFREG, unix.O_RDWR, false},
		{"ext4", "/a", unix.S_IFREG, unix.O_RDONLY, false},
	} {
		if got := IsHarmlessFile(c.fileSystem, c.name, c.mode, c.flags); got != c.harmless {
			t.Errorf("%s %s, mode %o, flags %#o: %t", c.fileSystem, c.name, c.mode, c.flags, got)
		}
	}
}
