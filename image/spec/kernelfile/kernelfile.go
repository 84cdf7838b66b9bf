// Package kernelfile knows files of /proc and /sys that a restored process may have open.
//
// CRIU opens files as root. For many files of the kernel that decides for ever what is read and written by the descriptor: the kernel's log, its addresses, frame
// numbers, the memory of a process. So only files are allowed that show no more to root than to others, or that the kernel asks about again at each read.
package kernelfile

import (
	"path"
	"regexp"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// The file systems, as the kernel names them.
const (
	Proc   = "proc"
	Sysfs  = "sysfs"
	Cgroup = "cgroup" // also cgroup2
)

// compiled returns a function that compiles an expression at its first call: few of the processes that have this package match anything.
func compiled(expression string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expression) })
}

// process are files of a process that say what it is. Not among them: mem, pagemap, stack, syscall, clear_refs, which reach into it or the kernel.
var process = compiled(`^(stat|statm|status|cmdline|comm|limits|cgroup|cpuset|io|mounts|mountinfo|mountstats|maps|smaps|smaps_rollup|numa_maps|environ|auxv|oom_score|oom_score_adj|` +
	`sched|schedstat|wchan|autogroup|coredump_filter|loginuid|sessionid|timerslack_ns|personality|uid_map|gid_map|projid_map|setgroups|timens_offsets|arch_status|fdinfo/[0-9]+|net/[^/]+(/[^/]+)*)$`)

// system are files of the whole system that every user may read, and sysctls, for which the kernel looks at the reader's and writer's rights.
var system = compiled(`^(meminfo|stat|loadavg|uptime|cpuinfo|version|filesystems|swaps|vmstat|diskstats|partitions|devices|interrupts|softirqs|zoneinfo|buddyinfo|cgroups|cmdline|misc|locks|` +
	`consoles|crypto|execdomains|dma|pressure/[a-z]+|sys/.+|driver/nvidia/.+)$`)

// ofProcess are the directories of processes and threads.
var ofProcess = compiled(`^([0-9]+|self|thread-self)/(task/[0-9]+/)?`)

// sys are files of sysfs about processors, memory and the container's own network devices.
var sys = compiled(`^(devices/system/|devices/virtual/net/|kernel/mm/)`)

// writable are files of a process for which the kernel looks at the writer's rights.
var writable = compiled(`^(comm|oom_score_adj)$`)

// Harmless reports whether a process may have a file open that CRIU opens. name is its path from the root of the file system; flags are those of open(2), mode is that of stat(2).
func Harmless(fileSystem, name string, mode, flags uint32) bool {
	name = strings.TrimPrefix(path.Clean("/"+name), "/")
	if kind := mode & unix.S_IFMT; kind == unix.S_IFDIR || kind == unix.S_IFLNK || flags&unix.O_PATH != 0 {
		return true // the kernel asks again when something is looked up or opened by it
	}
	writes := flags&unix.O_ACCMODE != unix.O_RDONLY
	switch fileSystem {
	case Proc:
		if of := ofProcess().FindString(name); of != "" {
			name = name[len(of):]
			return process().MatchString(name) && (!writes || writable().MatchString(name))
		}
		return !writes && system().MatchString(name)
	case Sysfs:
		return !writes && sys().MatchString(name)
	case Cgroup, "cgroup2":
		return !writes
	}
	return false
}
