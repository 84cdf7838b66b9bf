package trust

import (
	"maps"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Files of a cgroup of version 2 that a specification may name. Source: Linux, Documentation/admin-guide/cgroup-v2.rst.
var (
	// limitFiles only limit what the container has.
	limitFiles = []string{
		"cpu.idle", "cpu.max", "cpu.max.burst", "cpu.uclamp.max", "cpu.weight", "cpu.weight.nice", "cpuset.cpus", "cpuset.mems", "hugetlb.*.max", "hugetlb.*.rsvd.max",
		"io.bfq.weight", "io.max", "io.weight", "memory.high", "memory.max", "memory.oom.group", "memory.swap.high", "memory.swap.max", "memory.zswap.max",
		"memory.zswap.writeback", "misc.max", "pids.max", "rdma.max",
	}
	// favourFiles take from others what they give to the container.
	favourFiles = []string{"cpu.uclamp.min", "cpuset.cpus.exclusive", "io.latency", "io.prio.class", "memory.low", "memory.min"}
)

var (
	// pageSize is a size of huge pages, as in a file's name.
	pageSize = NewPattern(`^[0-9]+(KB|MB|GB)$`)
	// deviceName is the name of a device without a path.
	deviceName = NewPattern(`^[a-zA-Z0-9_.:-]+$`)
)

// cgroupFiles reviews what becomes a part of the name of a cgroup's file, or a line in one. cgroup.procs would move processes of the host into the container's cgroup; a
// path, to write elsewhere.
func (r *reviewer) cgroupFiles(spec *specs.Spec) {
	l := spec.Linux.Resources
	if l == nil {
		return
	}
	for _, h := range l.HugepageLimits {
		if !pageSize.MatchString(h.Pagesize) {
			r.ask(Nothing, "a limit of huge pages of size %s", brief(h.Pagesize))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(l.Rdma)) {
		if !deviceName.MatchString(name) {
			r.ask(Nothing, "a limit of the RDMA device %s", brief(name))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(l.Unified)) {
		plain := name
		if size, file, ok := strings.Cut(strings.TrimPrefix(name, "hugetlb."), "."); ok && strings.HasPrefix(name, "hugetlb.") && pageSize.MatchString(size) {
			plain = "hugetlb.*." + file
		}
		switch {
		case slices.Contains(limitFiles, plain) && !strings.Contains(name, "*"):
		case slices.Contains(favourFiles, plain):
			r.ask(Privileges, "the cgroup's %s of %s, which takes from others", name, brief(l.Unified[name]))
		default:
			r.ask(Nothing, "the file %s of its cgroup", brief(name))
		}
	}
}

// priorityLimits are those by which a process may get more of a CPU than others. The kernel's own defaults are 0.
var priorityLimits = []string{"RLIMIT_NICE", "RLIMIT_RTPRIO"}

// otherLimits are of memory, files and processes, which count in the container's cgroup. A container without them has those of containerd. Source: setrlimit(2).
var otherLimits = []string{
	"RLIMIT_AS", "RLIMIT_CORE", "RLIMIT_CPU", "RLIMIT_DATA", "RLIMIT_FSIZE", "RLIMIT_LOCKS", "RLIMIT_MEMLOCK", "RLIMIT_MSGQUEUE", "RLIMIT_NOFILE", "RLIMIT_NPROC", "RLIMIT_RSS",
	"RLIMIT_RTTIME", "RLIMIT_SIGPENDING", "RLIMIT_STACK",
}

func (r *reviewer) rlimits(spec *specs.Spec) {
	if spec.Process == nil {
		return
	}
	for _, l := range spec.Process.Rlimits {
		switch {
		case slices.Contains(priorityLimits, l.Type):
			if l.Hard > 0 || l.Soft > 0 {
				r.ask(Privileges, "real-time scheduling or priority (%s of %d)", l.Type, max(l.Hard, l.Soft))
			}
		case !slices.Contains(otherLimits, l.Type):
			r.ask(Nothing, "the limit %s", brief(l.Type))
		}
	}
}

// scheduling asks for what gets a container ahead of others.
func (r *reviewer) scheduling(spec *specs.Spec) {
	p := spec.Process
	if p == nil {
		return
	}
	if p.OOMScoreAdj != nil && *p.OOMScoreAdj < 0 {
		r.ask(Privileges, "protection from the OOM killer (score %d)", *p.OOMScoreAdj)
	}
	if s := p.Scheduler; s != nil {
		if !slices.Contains([]specs.LinuxSchedulerPolicy{"", specs.SchedOther, specs.SchedBatch, specs.SchedIdle}, s.Policy) {
			r.ask(Privileges, "real-time scheduling (%s)", s.Policy)
		}
		if s.Nice < 0 {
			r.ask(Privileges, "the nice value %d", s.Nice)
		}
		if s.Priority != 0 || s.Runtime != 0 || s.Deadline != 0 || s.Period != 0 {
			r.ask(Privileges, "real-time scheduling (priority %d, runtime %d, deadline %d, period %d)", s.Priority, s.Runtime, s.Deadline, s.Period)
		}
		for _, f := range s.Flags {
			if f != specs.SchedFlagResetOnFork {
				r.ask(Privileges, "the scheduling flag %s", brief(string(f)))
			}
		}
	}
	if i := p.IOPriority; i != nil && !slices.Contains([]specs.IOPriorityClass{"", specs.IOPRIO_CLASS_BE, specs.IOPRIO_CLASS_IDLE}, i.Class) {
		r.ask(Privileges, "real-time scheduling of reads and writes (%s)", i.Class)
	}
}

// resctrl asks for classes of the host's caches. The name of one is a directory's.
func (r *reviewer) resctrl(spec *specs.Spec) {
	i := spec.Linux.IntelRdt
	if i == nil {
		return
	}
	r.ask(Privileges, "a class of the host's cache allocation (resctrl)")
	if i.ClosID != "" && !deviceName.MatchString(i.ClosID) || strings.Trim(i.ClosID, ".") == "" && i.ClosID != "" {
		r.ask(Nothing, "the class of cache allocation %s", brief(i.ClosID))
	}
}
