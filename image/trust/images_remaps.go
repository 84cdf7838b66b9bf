package trust

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/fdinfo"
	ghostfile "github.com/checkpoint-restore/go-criu/v8/crit/images/ghost-file"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/mnt"
	remapfile "github.com/checkpoint-restore/go-criu/v8/crit/images/remap-file-path"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// remaps reviews files that are open and have no name any more. CRIU makes them (a ghost), or finds them by a link that the dump has made, and unlinks that. It does both as root, by
// names and with owners and modes of the images, and makes a read-only mount writable for it. So they must be where the container's own files are: in its root file
// system, or in a tmpfs that CRIU fills. A ghost may also be on a writable mount of the host's, if the container could have made it there.
// Source: CRIU 4.2, criu/files-reg.c, create_ghost, rfi_remap and clean_one_remap; criu/mount.c, try_remount_writable.
func (r *imageReviewer) remaps() error {
	const name = "remap-fpath.img"
	remaps, err := read[remapfile.RemapFilePathEntry](r.images, name)
	if err != nil || len(remaps) == 0 {
		return err
	}
	paths := map[uint32]*fdinfo.FileEntry{}
	if err := each(r.images, "files.img", func(e *fdinfo.FileEntry) error {
		if e.GetReg() != nil {
			paths[e.GetId()] = e
		}
		return nil
	}); err != nil {
		return err
	}
	m, err := containerMountsOf(r.images)
	if err != nil {
		return err
	}
	for _, remap := range remaps {
		e := paths[remap.GetOrigId()].GetReg()
		if e == nil {
			return &DamagedError{File: name, Err: fmt.Errorf("a deleted file %d, which is not open", remap.GetOrigId())}
		}
		if remap.RemapType == nil { // CRIU takes it for one of an old image, and guesses
			return &DamagedError{File: name, Err: fmt.Errorf("the deleted file %q without its kind", e.GetName())}
		}
		if remap.GetRemapType() == remapfile.RemapType_PROCFS { // of a process that has ended: CRIU makes no file
			continue
		}
		on, err := m.of(e.GetName(), uint32(e.GetMntId()))
		if err == nil {
			err = r.remapped(remap, e.GetName(), on, m, paths)
		}
		if err != nil {
			return &DamagedError{File: name, Err: err}
		}
	}
	return nil
}

// remapped reviews one of them, which is on a mount.
func (r *imageReviewer) remapped(remap *remapfile.RemapFilePathEntry, name string, on *mnt.MntEntry, m containerMounts, paths map[uint32]*fdinfo.FileEntry) error {
	if remap.GetRemapType() == remapfile.RemapType_LINKED {
		link := paths[remap.GetRemapId()].GetReg().GetName()
		// Source of the name: CRIU 4.2, criu/files-reg.c, create_link_remap.
		if path.Base(link) != fmt.Sprintf("link_remap.%d", remap.GetRemapId()) || !below(clean(name), strings.TrimSuffix(path.Dir(clean(link)), "/")) {
			return fmt.Errorf("the deleted file %q is linked as %q, and not as a dump links files", name, link)
		}
		if !m.own(on) {
			return fmt.Errorf("the deleted file %q has another name, on a mount of the host's at %s, where CRIU would unlink it", name, on.GetMountpoint())
		}
		_, err := m.of(link, on.GetMntId())
		return err
	}
	if m.own(on) {
		return nil
	}
	if !r.writes(on) {
		return fmt.Errorf("the deleted file %q is on a mount of the host's at %s, which cannot be written to", name, on.GetMountpoint())
	}
	if makesAny(r.spec) {
		return nil
	}
	ghost, err := readFirst[ghostfile.GhostFileEntry](r.images, fmt.Sprintf("ghost-file-%x.img", remap.GetRemapId()))
	if err != nil {
		return err
	}
	if !ownedBy(r.spec, ghost.GetUid(), ghost.GetGid()) || ghost.GetMode()&(unix.S_ISUID|unix.S_ISGID) != 0 {
		r.ask(Privileges, "the deleted file %q of user %d and group %d, mode %o, on a mount of the host's, which the container's user could not make",
			name, ghost.GetUid(), ghost.GetGid(), ghost.GetMode()&^unix.S_IFMT)
	}
	return nil
}

// writes reports whether the specification has the mount, from the host and writable.
func (r *imageReviewer) writes(on *mnt.MntEntry) bool {
	m := r.mounted[clean(on.GetExtKey())]
	return on.GetExtKey() != "" && m.external && !m.cgroup && !m.readonly && (on.GetFlags()|on.GetSbFlags())&unix.MS_RDONLY == 0
}

// makesAny reports whether a process of the specification's user can make files of any owner and mode in any directory.
func makesAny(spec *specs.Spec) bool {
	const chown, dacOverride, fowner, fsetid = 0, 1, 3, 4 // linux/capability.h
	granted := grantedBy(spec)
	return spec.Process != nil && spec.Process.User.UID == 0 && granted[chown] && granted[dacOverride] && granted[fowner] && granted[fsetid]
}

// ownedBy reports whether the specification's user can give a file to a user and group.
func ownedBy(spec *specs.Spec, uid, gid uint32) bool {
	if spec.Process == nil {
		return false
	}
	u := spec.Process.User
	return uid == u.UID && (gid == u.GID || slices.Contains(u.AdditionalGids, gid))
}

// containerMounts are the mounts of the container's mount namespace.
type containerMounts struct {
	tree mountTree
	byID map[uint32]*mnt.MntEntry
}

// containerMountsOf reads them.
func containerMountsOf(images fs.FS) (m containerMounts, err error) {
	names, err := files(images, "mountpoints-*.img")
	if err != nil {
		return m, err
	}
	if len(names) != 1 {
		return m, &DamagedError{Err: fmt.Errorf("%d mount namespaces", len(names))}
	}
	entries, err := read[mnt.MntEntry](images, names[0])
	if err != nil {
		return m, err
	}
	roots := rootsOf(entries)
	if len(roots) != 1 {
		return m, &DamagedError{File: names[0], Err: errors.New("the mounts are not one tree")}
	}
	m = containerMounts{tree: newMountTree(roots[0], entries), byID: map[uint32]*mnt.MntEntry{}}
	for _, e := range entries {
		m.byID[e.GetMntId()] = e
	}
	return m, nil
}

// of returns the mount that a file is said to be on. CRIU makes files by their path, so the path must lead to that mount.
func (m containerMounts) of(name string, id uint32) (*mnt.MntEntry, error) {
	on := m.byID[id]
	if on == nil {
		return nil, fmt.Errorf("the deleted file %q is on a mount %d, which there is not", name, id)
	}
	if at := m.tree.at(clean(name)); at != on {
		return nil, fmt.Errorf("the deleted file %q is on the mount at %s, and not at its own path", name, on.GetMountpoint())
	}
	return on, nil
}

// own reports whether a mount is of the container's own files: its root, or a tmpfs that CRIU fills.
func (m containerMounts) own(on *mnt.MntEntry) bool {
	return on == m.tree.root || on.GetFstype() == uint32(mnt.Fstype_TMPFS) && on.GetExtKey() == ""
}
