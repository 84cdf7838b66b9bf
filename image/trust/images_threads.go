package trust

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/creds"
	criucore "github.com/checkpoint-restore/go-criu/v8/crit/images/criu-core"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/inventory"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/mm"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/netdev"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/pidns"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/pstree"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/seccomp"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/tty"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/userns"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
)

// thread reviews what CRIU gives a thread besides capabilities: no_new_privs, seccomp filters, the LSM label and scheduling.
func (r *imageReviewer) thread(e *criucore.CoreEntry) error {
	const dead, zombie = 2, 6 // CRIU 4.2, criu/include/pid.h, TASK_DEAD
	t := e.GetThreadCore()
	if t.GetCreds() == nil {
		if state := e.GetTc().GetTaskState(); e.GetTc() != nil && (state == dead || state == zombie) {
			return nil
		}
		return errors.New("a process without credentials")
	}
	p := r.spec.Process
	if p == nil {
		return nil
	}
	if p.NoNewPrivileges && t.GetCreds().GetNoNewPrivs() != 1 {
		r.ask(Privileges, "processes without no_new_privs, which the specification has")
	}
	wanted := slices.DeleteFunc([]string{p.ApparmorProfile, p.SelinuxLabel}, func(label string) bool { return label == "" || label == "unconfined" })
	has, sockets := t.GetCreds().GetLsmProfile(), t.GetCreds().GetLsmSockcreate()
	for _, label := range []string{has, cmp.Or(sockets, has)} {
		if len(wanted) > 0 && !slices.Contains(wanted, label) {
			r.ask(Privileges, "processes with the label %q, and not with the specification's", label)
		}
	}
	r.ids(t.GetCreds())
	r.secureBits(t.GetCreds().GetSecbits())
	r.schedule(t)
	return nil
}

// secureBits asks for bits that only a process with CAP_SETPCAP sets. The kernel shows them to the process alone, so that nothing compares them later. Source: capabilities(7);
// linux/securebits.h, whose bits from 8 are of checks that a process has programs make.
func (r *imageReviewer) secureBits(bits uint32) {
	const setPCap, keepCaps, exec = 8, 1 << 4, 0xf << 8
	if bits&^(keepCaps|exec) != 0 && !r.granted[setPCap] {
		r.ask(Privileges, "processes with the secure bits %#x, which take CAP_SETPCAP", bits)
	}
}

// ids asks for users and groups that no process can give itself: it has not the capability, and no_new_privs keeps programs from giving it.
func (r *imageReviewer) ids(c *creds.CredsEntry) {
	const setGID, setUID = 6, 7
	p := r.spec.Process
	if !p.NoNewPrivileges {
		return
	}
	users, groups := []uint32{c.GetUid(), c.GetEuid(), c.GetSuid(), c.GetFsuid()}, []uint32{c.GetGid(), c.GetEgid(), c.GetSgid(), c.GetFsgid()}
	if !r.granted[setUID] && slices.ContainsFunc(users, func(id uint32) bool { return id != p.User.UID }) {
		r.ask(Privileges, "processes of the users %d, and not of the specification's", users)
	}
	other := func(id uint32) bool { return id != p.User.GID }
	if !r.granted[setGID] && (slices.ContainsFunc(groups, other) ||
		slices.ContainsFunc(c.GetGroups(), func(id uint32) bool { return other(id) && !r.groups[id] })) {
		r.ask(Privileges, "processes of the groups %d %d, and not of the specification's", groups, c.GetGroups())
	}
}

// filtered reports whether runc installs a seccomp filter for the container's processes. Source: runc, libcontainer/specconv.SetupSeccomp.
func (r *imageReviewer) filtered() bool {
	l := r.spec.Linux
	return l != nil && l.Seccomp != nil && (l.Seccomp.DefaultAction != "" || len(l.Seccomp.Syscalls) > 0)
}

// filters wants each thread to have a filter of system calls where the specification has one: its own, or the one that its process's first thread gives to all.
// What the filter lets through is not reviewed. Source: CRIU 4.2, criu/seccomp.c, try_use_tsync.
func (r *imageReviewer) filters() error {
	const tsync = 1 // SECCOMP_FILTER_FLAG_TSYNC
	if !r.filtered() {
		return nil
	}
	all, err := read[seccomp.SeccompEntry](r.images, "seccomp.img")
	if err != nil {
		return err
	}
	trees, err := read[pstree.PstreeEntry](r.images, "pstree.img")
	if err != nil {
		return err
	}
	known := map[uint32]*seccomp.SeccompFilter{} // a thread may be named a million times
	filter := func(pid uint32) (f *seccomp.SeccompFilter, err error) {
		if f, ok := known[pid]; ok {
			return f, nil
		}
		defer func() { known[pid] = f }()
		cores, err := read[criucore.CoreEntry](r.images, fmt.Sprintf("core-%d.img", pid))
		if err != nil || len(cores) != 1 || len(all) != 1 {
			return nil, err
		}
		t := cores[0].GetThreadCore()
		i, filters := t.GetSeccompFilter(), all[0].GetSeccompFilters()
		switch {
		case t == nil: // a process that has ended
			return &seccomp.SeccompFilter{Flags: proto.Uint32(tsync)}, nil
		case t.GetSeccompMode() != criucore.SeccompMode_filter || t.SeccompFilter == nil || uint64(i) >= uint64(len(filters)):
			return nil, nil
		}
		return filters[i], nil
	}
	for _, tree := range trees {
		first, err := filter(tree.GetPid())
		if err != nil {
			return err
		}
		missing := first == nil
		for _, tid := range tree.GetThreads() {
			if missing || first.GetFlags()&tsync != 0 {
				break
			}
			own, err := filter(tid)
			if err != nil {
				return err
			}
			missing = own == nil
		}
		if missing {
			r.ask(Privileges, "processes without a filter of system calls (seccomp), which the specification has")
		}
	}
	return nil
}

// schedule asks for scheduling that needs CAP_SYS_NICE, unless the specification has it.
func (r *imageReviewer) schedule(t *criucore.ThreadCoreEntry) {
	const sysNice = 23
	if r.granted[sysNice] {
		return
	}
	var wanted specs.Scheduler
	if s := r.spec.Process.Scheduler; s != nil {
		wanted = *s
	}
	policies := map[uint32]specs.LinuxSchedulerPolicy{unix.SCHED_FIFO: specs.SchedFIFO, unix.SCHED_RR: specs.SchedRR, unix.SCHED_DEADLINE: specs.SchedDeadline}
	if name, realtime := policies[t.GetSchedPolicy()]; realtime && wanted.Policy != name {
		r.ask(Privileges, "real-time scheduling of processes (%s)", name)
	}
	if nice := t.GetSchedNice(); nice < min(wanted.Nice, 0) {
		r.ask(Privileges, "processes with the nice value %d", nice)
	}
}

// runID is how CRIU names a dump; it is a part of the name of a table of nftables, in a command. Source: CRIU 4.2, criu/netfilter.c.
var runID = NewPattern(`^([0-9a-f-]{36})?$`)

func (r *imageReviewer) inventory() error {
	const name = "inventory.img"
	entries, err := read[inventory.InventoryEntry](r.images, name)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if id := e.GetDumpCriuRunId(); !runID.MatchString(id) {
			return &DamagedError{File: name, Err: fmt.Errorf("a dump of the name %q", id)}
		}
	}
	return nil
}

// regions reviews where memory is: CRIU restores it beside its own code, for which it looks for a hole.
func (r *imageReviewer) regions() error {
	const (
		page = 4096
		top  = 1 << 56 // of five levels of page tables
	)
	return each(r.images, "mm-*.img", func(e *mm.MmEntry) error {
		end := uint64(0)
		for _, v := range e.GetVmas() {
			vsyscall := v.GetStart() == 0xffffffffff600000
			if v.GetStart()%page != 0 || v.GetEnd()%page != 0 || v.GetStart() < end || v.GetEnd() <= v.GetStart() || v.GetEnd() > top && !vsyscall {
				return fmt.Errorf("memory from %#x to %#x", v.GetStart(), v.GetEnd())
			}
			end = v.GetEnd()
		}
		return nil
	})
}

// terminals asks for those that are the host's.
func (r *imageReviewer) terminals() error {
	entries, err := read[tty.TtyInfoEntry](r.images, "tty-info.img")
	if err != nil {
		return err
	}
	for _, e := range entries {
		switch e.GetType() {
		case tty.TtyType_PTY, tty.TtyType_CTTY, tty.TtyType_CONSOLE:
		default:
			r.ask(Devices, "a terminal of kind %s, which is open in a process", e.GetType())
		}
	}
	return nil
}

// externalNamespaces reviews by which name namespaces that have a path are asked for. Source: runc, libcontainer/criu_linux.go, criuNsToKey.
func (r *imageReviewer) externalNamespaces() error {
	check := func(key, wanted string) error {
		if key == "" || key == wanted {
			return nil
		}
		return fmt.Errorf("a namespace of the name %q", key)
	}
	if err := each(r.images, "netns-[0-9]*.img", func(e *netdev.NetnsEntry) error { return check(e.GetExtKey(), "extRootNetNS") }); err != nil {
		return err
	}
	return each(r.images, "pidns-*.img", func(e *pidns.PidnsEntry) error { return check(e.GetExtKey(), "extRootPidNS") })
}

// users reviews which users of the host those of the container are.
func (r *imageReviewer) users() error {
	var l specs.Linux
	if r.spec.Linux != nil {
		l = *r.spec.Linux
	}
	same := func(a *userns.UidGidExtent, b specs.LinuxIDMapping) bool {
		return a.GetFirst() == b.ContainerID && a.GetLowerFirst() == b.HostID && a.GetCount() == b.Size
	}
	return each(r.images, "userns-*.img", func(e *userns.UsernsEntry) error {
		if !slices.EqualFunc(e.GetUidMap(), l.UIDMappings, same) || !slices.EqualFunc(e.GetGidMap(), l.GIDMappings, same) {
			r.ask(Namespaces, "users and groups of the host's that the specification does not map")
		}
		return nil
	})
}
