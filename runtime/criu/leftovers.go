package criu

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/fdinfo"
	ghostfile "github.com/checkpoint-restore/go-criu/v8/crit/images/ghost-file"
	remap "github.com/checkpoint-restore/go-criu/v8/crit/images/remap-file-path"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
)

// Leftovers are names on mounts of the host's that are not there before a restore, and that CRIU gives files: deleted files that are open, the directories that they were in, and sockets. CRIU takes
// deleted files away again, unless it fails or is killed.
type Leftovers []leftover

type leftover struct {
	source, name string // of the mount on the host, and below it
	is           func(st unix.Stat_t) bool
}

// FindLeftovers lists them by the images in dir. sources are those of the bind mounts that can be written to, by their destinations.
func FindLeftovers(dir string, sources map[string]string) (all Leftovers, err error) {
	if len(sources) == 0 {
		return nil, nil
	}
	mounts, err := mountsIn(dir)
	if err != nil || len(mounts) == 0 {
		return nil, err
	}
	ghosts := map[uint32]uint32{} // image of a deleted file, by the number of the file that is open
	if err := eachRecord(dir, "remap-fpath.img", func(data []byte) error {
		var r remap.RemapFilePathEntry
		if err := proto.Unmarshal(data, &r); err != nil {
			return err
		}
		if r.GetRemapType() == remap.RemapType_GHOST {
			ghosts[r.GetOrigId()] = r.GetRemapId()
		}
		return nil
	}); err != nil {
		return nil, err
	}
	on := map[string]string{} // sources by where a mount is
	for _, m := range mounts {
		if source := sources[path.Clean(m.GetExtKey())]; source != "" {
			on[path.Clean(m.GetMountpoint())] = source
		}
	}
	// mountOf gives the mount that a name is on; empty: it is on none of these.
	mountOf := func(name string) string {
		for at := path.Clean(name); at != "/" && at != "."; at = path.Dir(at) {
			if on[at] != "" {
				return at
			}
		}
		return ""
	}
	add := func(name string, is func(unix.Stat_t) bool) {
		if at := mountOf(name); at != "" {
			all = append(all, leftover{on[at], strings.TrimPrefix(path.Clean(name), at), is})
		}
	}
	err = eachRecord(dir, "files.img", func(data []byte) error {
		var f fdinfo.FileEntry
		if err := (proto.UnmarshalOptions{AllowPartial: true}).Unmarshal(data, &f); err != nil {
			return err
		}
		if name := string(f.GetUsk().GetName()); strings.HasPrefix(name, "/") {
			add(strings.TrimSuffix(name, "\x00"), func(st unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFSOCK })
		}
		id, deleted := ghosts[f.GetId()]
		name := path.Join("/", f.GetReg().GetName())
		at := mountOf(name)
		if f.GetReg() == nil || !deleted || at == "" {
			return nil
		}
		ghost, err := ghostOf(dir, id)
		if err != nil {
			return err
		}
		same := func(st unix.Stat_t) bool {
			return st.Mode == ghost.GetMode() && st.Mtim.Sec == int64(ghost.GetMtim().GetTvSec()) && st.Mtim.Nsec/1000 == int64(ghost.GetMtim().GetTvUsec())
		}
		add(name, same)
		add(name+".cr_link", same)
		directory := func(st unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFDIR }
		if ghost.GetMode()&unix.S_IFMT == unix.S_IFDIR {
			add(name, directory)
		}
		// CRIU makes it where the first directory is that is there, and later those that are not.
		suffix := fmt.Sprintf("%s.cr.%x.ghost", path.Base(name), id)
		for parent := path.Dir(name); ; parent = path.Dir(parent) {
			add(path.Join(parent, suffix), func(unix.Stat_t) bool { return true })
			if parent == at || parent == "/" {
				return nil
			}
			add(parent, directory)
		}
	})
	return all.missing(), err
}

// ghostOf reads what a deleted file was.
func ghostOf(dir string, id uint32) (ghost *ghostfile.GhostFileEntry, err error) {
	const most = 64 << 10 // of the record; contents follow
	f, err := os.Open(filepath.Join(dir, fmt.Sprintf("ghost-file-%x.img", id)))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	head := make([]byte, most)
	n, err := f.Read(head)
	if err != nil {
		return nil, err
	}
	first := errors.New("one is enough")
	err = walkRecords(head[:n], func(data []byte) error {
		ghost = &ghostfile.GhostFileEntry{}
		return errors.Join(proto.Unmarshal(data, ghost), first)
	})
	if !errors.Is(err, first) {
		return nil, fmt.Errorf("read a deleted file: %w", err)
	}
	return ghost, nil
}

// missing leaves out what is there.
func (l Leftovers) missing() (left Leftovers) {
	for _, o := range l {
		var st unix.Stat_t
		if parent, err := o.parent(); err == nil {
			err = unix.Fstatat(parent, path.Base(o.name), &st, unix.AT_SYMLINK_NOFOLLOW)
			_ = unix.Close(parent)
			if err == nil {
				continue
			}
		}
		left = append(left, o)
	}
	return left
}

// parent opens the directory in which it would be, and follows no links.
func (o leftover) parent() (int, error) {
	source, err := unix.Open(o.source, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(source)
	return unix.Openat2(source, path.Join(".", path.Dir(o.name)), &unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS})
}

// Remove takes away what is there by now, and is what CRIU makes; directories only if they are empty. It is called when a restore has failed and CRIU has ended.
func (l Leftovers) Remove() (err error) {
	for _, o := range l { // a file before its directory
		parent, openErr := o.parent()
		if openErr != nil {
			continue // it is not there
		}
		var st unix.Stat_t
		if name := path.Base(o.name); unix.Fstatat(parent, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && o.is(st) {
			flags := 0
			if st.Mode&unix.S_IFMT == unix.S_IFDIR {
				flags = unix.AT_REMOVEDIR
			}
			if e := unix.Unlinkat(parent, name, flags); e != nil && !errors.Is(e, unix.ENOENT) && !errors.Is(e, unix.ENOTEMPTY) {
				err = errors.Join(err, fmt.Errorf("remove %s, which a failed restore has left: %w", filepath.Join(o.source, o.name), e))
			}
		}
		_ = unix.Close(parent)
	}
	return err
}
