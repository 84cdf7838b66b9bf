package trust

import (
	"path"
	"strings"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/fdinfo"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/mnt"
)

// kernelFileSystems are those whose files the kernel makes, by CRIU's numbers.
var kernelFileSystems = map[uint32]string{
	uint32(mnt.Fstype_PROC): ProcFS, uint32(mnt.Fstype_SYSFS): SysFS, uint32(mnt.Fstype_CGROUP): CgroupFS, uint32(mnt.Fstype_CGROUP2): CgroupFS,
}

// kernelFiles asks for open files of /proc and /sys that are not known to be harmless where CRIU opens them, which is root.
func (r *imageReviewer) kernelFiles() error {
	var m containerMounts
	return each(r.images, "files.img", func(f *fdinfo.FileEntry) error {
		reg := f.GetReg()
		if reg == nil {
			return nil
		}
		if m.byID == nil {
			var err error
			if m, err = containerMountsOf(r.images); err != nil {
				return err
			}
		}
		name := clean(reg.GetName())
		for _, on := range []*mnt.MntEntry{m.tree.at(name), m.byID[uint32(reg.GetMntId())]} {
			kind, kernel := kernelFileSystems[on.GetFstype()]
			if on == nil || !kernel || on == m.tree.root {
				continue
			}
			within := path.Join(clean(on.GetRoot()), strings.TrimPrefix(name, path.Clean(on.GetMountpoint())))
			if !IsHarmlessFile(kind, within, reg.GetMode(), reg.GetFlags()) {
				r.ask(Privileges, "%s, open in a process, by which the kernel would show more to it than to the container's user", reg.GetName())
			}
		}
		return nil
	})
}

// sent asks for files of the host's that wait in sockets of the container, to be received by a process. The comparison sees only what a process has, and CRIU opens them as root.
func (r *imageReviewer) sent() error {
	if makesAny(r.spec) {
		return nil
	}
	waiting := map[uint32]bool{}
	if err := r.inFlight(func(ids ...uint32) error {
		for _, id := range ids {
			waiting[id] = true
		}
		return nil
	}); err != nil || len(waiting) == 0 {
		return err
	}
	m, err := containerMountsOf(r.images)
	if err != nil {
		return err
	}
	return each(r.images, "files.img", func(f *fdinfo.FileEntry) error {
		name := f.GetReg().GetName()
		if f.GetReg() == nil || !waiting[f.GetId()] {
			return nil
		}
		for _, on := range []*mnt.MntEntry{m.tree.at(clean(name)), m.byID[uint32(f.GetReg().GetMntId())]} {
			if on != nil && !m.own(on) {
				r.ask(Privileges, "%s, which waits in a socket to be received, and which the container's user may not be able to open", name)
			}
		}
		return nil
	})
}
