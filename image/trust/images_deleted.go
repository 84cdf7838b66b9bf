package trust

import (
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/fdinfo"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/mnt"
	remapfile "github.com/checkpoint-restore/go-criu/v8/crit/images/remap-file-path"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// deletedRule is the name of the rule of [Made].
const deletedRule = "deleted-files"

// Made returns an error, a [*DamagedError], if CRIU would make a file where the container could not, a file that was deleted while it was open, or a socket; or watch one that it could not.
func Made(images fs.FS, at Files, spec *specs.Spec) error {
	if !Reviews {
		return nil
	}
	err := unlinked(images, at)
	if err == nil {
		err = outside(images, at, spec)
	}
	if d, ok := err.(*DamagedError); ok {
		d.Rule = deletedRule
	}
	return err
}

// outside wants files that CRIU makes on mounts of the host's to be in directories to which the specification's user may write, and those that it watches there to be such that the user may read.
func outside(images fs.FS, at Files, spec *specs.Spec) error {
	if makesAny(spec) {
		return nil
	}
	remaps, err := read[remapfile.RemapFilePathEntry](images, "remap-fpath.img")
	if err != nil {
		return err
	}
	deleted := map[uint32]bool{}
	for _, r := range remaps {
		deleted[r.GetOrigId()] = r.GetRemapType() == remapfile.RemapType_GHOST
	}
	var m containerMounts
	return each(images, "files.img", func(f *fdinfo.FileEntry) error {
		socket := f.GetUsk() != nil && f.GetUsk().GetUflags()&external == 0
		do := Make
		if f.GetIfy() != nil || f.GetFfy() != nil {
			do = Read
		} else if !socket && !(f.GetReg() != nil && deleted[f.GetId()]) {
			return nil
		}
		for _, name := range namesOf(f) {
			if m.byID == nil {
				if m, err = containerMountsOf(images); err != nil {
					return err
				}
			}
			on := m.tree.at(clean(name))
			i := slices.IndexFunc(spec.Mounts, func(s specs.Mount) bool { return lookable(s) && path.Clean(s.Destination) == clean(on.GetExtKey()) })
			if m.own(on) || i < 0 {
				continue
			}
			may, err := at.May(i, strings.TrimPrefix(clean(name), path.Clean(on.GetMountpoint())), do)
			if err != nil {
				return err
			}
			if !may {
				return fmt.Errorf("%q on a mount of the host's at %s, which the container's user could not %s", name, on.GetMountpoint(), do)
			}
		}
		return nil
	})
}

// unlinked wants no file that was deleted while it was open to have a name below a symbolic link of the root file system,
// or of a tmpfs. CRIU makes such files before it enters the container, and would follow the link as the host has it. The kernel told CRIU names without
// links. Source: CRIU 4.2, criu/files-reg.c, create_ghost.
func unlinked(images fs.FS, at Files) error {
	const name = "files.img"
	remaps, err := read[remapfile.RemapFilePathEntry](images, "remap-fpath.img")
	if err != nil || len(remaps) == 0 {
		return err
	}
	deleted := map[uint32]bool{}
	for _, r := range remaps {
		deleted[r.GetOrigId()] = true
	}
	mounted := map[uint32]string{} // where a tmpfs is, by the mount's id
	if err := each(images, "mountpoints-*.img", func(e *mnt.MntEntry) error {
		if e.GetFstype() == uint32(mnt.Fstype_TMPFS) {
			mounted[e.GetMntId()] = path.Clean(e.GetMountpoint())
		}
		return nil
	}); err != nil {
		return err
	}
	w, root := walk{files: at, seen: map[mountPlace]entry{}}, mountTree{root: &mnt.MntEntry{}}
	var within []string // paths in a tmpfs
	err = each(images, name, func(f *fdinfo.FileEntry) error {
		if f.GetReg() == nil || !deleted[f.GetId()] {
			return nil
		}
		name := f.GetReg().GetName()
		if mount, ok := mounted[uint32(f.GetReg().GetMntId())]; ok {
			within = append(within, strings.TrimPrefix(name, mount))
		}
		return noLinkAbove(name, func(dir string) (entry, error) { return w.see(root, root.root, dir, true) })
	})
	if len(within) > 0 && err == nil {
		err = noLinkIn(images, within)
	}
	return err
}

// noLinkIn wants no path to be below a link in any tmpfs.
func noLinkIn(images fs.FS, paths []string) error {
	names, err := files(images, "tmpfs-*.img")
	if err != nil {
		return err
	}
	var unpacked int64
	spent := 0
	for _, name := range names {
		entries, err := entriesOf(images, name, &unpacked)
		for _, p := range paths {
			if err == nil {
				err = noLinkAbove(p, func(dir string) (entry, error) {
					if spent += len(dir); spent > maxSpent {
						return entry{}, errPaths
					}
					return entries[dir], nil
				})
			}
		}
		if err != nil {
			return &DamagedError{File: name, Err: err}
		}
	}
	return nil
}

// noLinkAbove wants none of the directories above a path to be a symbolic link, or a hard one, which may be of a symbolic one.
func noLinkAbove(name string, look func(dir string) (entry, error)) error {
	dir := ""
	for _, part := range parts(path.Dir(clean(name))) {
		dir += "/" + part
		e, err := look(dir)
		if err != nil {
			return err
		}
		if e.kind == unix.S_IFLNK || e.kind == hard {
			return fmt.Errorf("the deleted file %q is below a link", name)
		}
	}
	return nil
}
