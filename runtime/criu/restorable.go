package criu

import (
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/failure"
)

// Rules by which [CheckRestorable] refuses a container.
const (
	RuleSealed  = "sealed-memfd"
	RuleLock    = "mapped-lock"
	RuleRenamed = "renamed-socket"
)

// CheckRestorable refuses, by an error of kind FailedPrecondition that names a rule, processes with something that CRIU would dump and a restore would not have. The first of pids is the container's first process. What cannot be read of a process is no reason to
// refuse it: CRIU reads the same, and reports it.
func CheckRestorable(pids []int) error {
	sockets := sockets{}
	for _, pid := range pids {
		if refused := nested(pids[0], pid); refused != nil {
			return refused
		}
		p := read(pid)
		for _, check := range []func() *failure.Error{p.sealed, p.locked, p.reserved, p.infected, func() *failure.Error { return p.renamed(sockets) }} {
			if refused := check(); refused != nil {
				return refused
			}
		}
	}
	return nil
}

// sealed refuses a memfd that is mapped with MAP_SHARED and has F_SEAL_WRITE: CRIU maps it for writing before it applies the seals, and the kernel then refuses the seal. With F_SEAL_FUTURE_WRITE it does not
// (tried with CRIU 4.2). Sources: CRIU 4.2, criu/memfd.c,
// memfd_open_inode_nocache; Linux, mm/memfd.c, memfd_add_seals.
func (p process) sealed() *failure.Error {
	for _, m := range p.mappings {
		if !strings.HasPrefix(m.path, "/memfd:") {
			continue
		}
		f, err := openRegular(dir(p.pid, "map_files", m.addresses))
		if err != nil {
			continue
		}
		seals, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
		_ = f.Close() // it was only looked at
		if err == nil && seals&unix.F_SEAL_WRITE != 0 {
			return failure.New(errdefs.ErrFailedPrecondition, "have the program unmap the memfd before the checkpoint, map it with MAP_PRIVATE, or seal it with F_SEAL_FUTURE_WRITE instead of F_SEAL_WRITE",
				RuleSealed+": %s shares a mapping of a memfd (%s) that is sealed against writing, which CRIU cannot restore", name(p.pid), m.path).By(RuleSealed)
		}
	}
	return nil
}

// locked refuses a POSIX lock on a file that the same process has mapped with MAP_SHARED. CRIU's restore closes the descriptors by which it has mapped files, and with any descriptor of a file that a process closes, all its
// POSIX locks on the file end. Source: fcntl_locking(2).
func (p process) locked() *failure.Error {
	if len(p.mappings) == 0 {
		return nil
	}
	for _, d := range p.descriptors {
		if !strings.HasPrefix(d.target, "/") {
			continue
		}
		i, err := inform(p.pid, d.number)
		if err != nil || len(i.locks) == 0 {
			continue
		}
		// With an overlay, a mapping may have the device of the layer, and a lock that of the overlay; the paths are the same.
		if slices.ContainsFunc(p.mappings, func(m mapping) bool { return m.path == d.target || slices.Contains(i.locks, m.file) }) {
			return failure.New(errdefs.ErrFailedPrecondition, "have the program close the file before the checkpoint; SQLite maps no file with PRAGMA journal_mode=DELETE, nor in WAL mode with PRAGMA locking_mode=EXCLUSIVE",
				RuleLock+": %s holds a lock on %s and has mapped it: CRIU would lose the lock", name(p.pid), d.target).By(RuleLock)
		}
	}
	return nil
}
