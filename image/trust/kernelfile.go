package trust

import (
	"path"
	"regexp"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// The file systems, as the kernel names them.
const (
	ProcFS   = "proc"
	SysFS    = "sysfs"
	CgroupFS = "cgroup" // also cgroup2
)

// compiled returns a function that compiles an expression at its first call: few of the processes that have this package match anything.
func compiled(expression string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expression) })
}

// processFile are files of a process that say what it is. Not among them: mem, pagemap, stack, syscall, clear_refs, which reach into it or the kernel.
var processFile = compiled(`^(stat|statm|status|cmdline|comm|limits|cgroup|cpuset|io|mounts|mountinfo|mountstats|maps|smaps|smaps_rollup|numa_maps|environ|auxv|oom_score|oom_score_adj|` +
	`sched|schedstat|wchan|autogroup|coredump_filter|loginuid|sessionid|timerslack_ns|personality|uid_map|gid_map|projid_map|setgroups|timens_offsets|arch_status|fdinfo/[0-9]+|net/[^/]+(/[^/]+)*)$`)

// systemFile are files of the whole system that every user may read, and sysctls, for which the kernel looks at the reader's and writer's rights.
var systemFile = compiled(`^(meminfo|stat|loadavg|uptime|cpuinfo|version|filesystems|swaps|vmstat|diskstats|partitions|devices|interrupts|softirqs|zoneinfo|buddyinfo|cgroups|cmdline|misc|locks|` +
	`consoles|crypto|execdomains|dma|pressure/[a-z]+|sys/.+|driver/nvidia/.+)$`)

// ofProcess are the directories of processes and threads.
var ofProcess = compiled(`^([0-9]+|self|thread-self)/(task/[0-9]+/)?`)

// sysFile are files of sysfs about processors, memory and the container's own network devices.
var sysFile = compiled(`^(devices/system/|devices/virtual/net/|kernel/mm/)`)

// writableFile are files of a process for which the kernel looks at the writer's rights.
var writableFile = compiled(`^(comm|oom_score_adj)$`)

// IsHarmlessFile reports whether a process may have a file open that CRIU opens. name is its path from the root of the file system; flags are those of open(2), mode is that of stat(2).
func IsHarmlessFile(fileSystem, name string, mode, flags uint32) bool {
	name = strings.TrimPrefix(path.Clean("/"+name), "/")
	if kind := mode & unix.S_IFMT; kind == unix.S_IFDIR || kind == unix.S_IFLNK || flags&unix.O_PATH != 0 {
		return true // the kernel asks again when something is looked up or opened by it
	}
	writes := flags&unix.O_ACCMODE != unix.O_RDONLY
	switch fileSystem {
	case ProcFS:
		if of := ofProcess().FindString(name); of != "" {
			name = name[len(of):]
			return processFile().MatchString(name) && (!writes || writableFile().MatchString(name))
		}
		return !writes && systemFile().MatchString(name)
	case SysFS:
		return !writes && sysFile().MatchString(name)
	case CgroupFS, "cgroup2":
		return !writes
	}
	return false
}
