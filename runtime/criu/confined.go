package criu

import (
	"errors"
	"fmt"
	"path"
	"path/filepath"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/fdinfo"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/mnt"
	remap "github.com/checkpoint-restore/go-criu/v8/crit/images/remap-file-path"
	"google.golang.org/protobuf/proto"
)

// made are the file systems that CRIU may make anew, with what it calls them. Others are the host's, as devtmpfs is.
var made = map[mnt.Fstype]bool{
	// No kernel has a file system of the name that CRIU makes one of this kind by. It is a part of a file system of the host's that another mount brings, as where /usr is bound with all below it, and a
	// file below it once more. Source: CRIU 4.2, criu/filesystems.c, fstypes.
	mnt.Fstype_UNSUPPORTED: true,

	mnt.Fstype_TMPFS: true, mnt.Fstype_PROC: true, mnt.Fstype_SYSFS: true, mnt.Fstype_DEVPTS: true, mnt.Fstype_MQUEUE: true, mnt.Fstype_CGROUP: true, mnt.Fstype_CGROUP2: true,
}

// CheckWrites returns an error if CRIU, by the images in dir, would write where its confinement cannot keep it from that: to a file system that it makes anew and that is the host's, or
// in a second mount namespace; or to a mount that it would first make writable, or a file that it would unlink, for a file that is open and has no name. readonly reports whether the specification has the mount
// with a key of runc's read-only. Source: CRIU 4.2, criu/mount-v2.c, do_new_mount_v2; criu/files-reg.c, create_ghost and clean_one_remap.
func CheckWrites(dir string, readonly func(key string) bool) error {
	names, err := filepath.Glob(filepath.Join(dir, "mountpoints-*.img"))
	if err != nil {
		return fmt.Errorf("find the images of mounts: %w", err)
	}
	if len(names) > 1 {
		return fmt.Errorf("%d mount namespaces, where a container has one", len(names))
	}
	mounts := map[uint32]*mnt.MntEntry{}
	for _, name := range names {
		if err := eachRecord(dir, filepath.Base(name), func(data []byte) error {
			var m mnt.MntEntry
			if err := proto.Unmarshal(data, &m); err != nil {
				return err
			}
			if mounts[m.GetMntId()] != nil {
				return fmt.Errorf("two mounts with the number %d", m.GetMntId())
			}
			mounts[m.GetMntId()] = &m
			if m.GetExtKey() == "" && path.Clean(m.GetMountpoint()) != "/" && !made[mnt.Fstype(m.GetFstype())] {
				return fmt.Errorf("a mount of %s at %s, which CRIU makes in no container", mnt.Fstype(m.GetFstype()), m.GetMountpoint())
			}
			return nil
		}); err != nil {
			return err
		}
	}
	deleted := map[uint32]bool{}
	linked := map[uint32]bool{}
	if err := eachRecord(dir, "remap-fpath.img", func(data []byte) error {
		var r remap.RemapFilePathEntry
		if err := proto.Unmarshal(data, &r); err != nil {
			return err
		}
		if r.RemapType == nil {
			return errors.New("a deleted file without its kind")
		}
		deleted[r.GetOrigId()] = deleted[r.GetOrigId()] || r.GetRemapType() != remap.RemapType_PROCFS
		linked[r.GetOrigId()] = linked[r.GetOrigId()] || r.GetRemapType() == remap.RemapType_LINKED
		return nil
	}); err != nil || len(deleted) == 0 {
		return err
	}
	return eachRecord(dir, "files.img", func(data []byte) error {
		var f fdinfo.FileEntry
		if err := (proto.UnmarshalOptions{AllowPartial: true}).Unmarshal(data, &f); err != nil {
			return err
		}
		r := f.GetReg()
		if r == nil || !deleted[r.GetId()] { // CRIU compares the number with the file's own
			return nil
		}
		key := mounts[uint32(r.GetMntId())].GetExtKey()
		if key != "" && (readonly(key) || linked[r.GetId()]) {
			return fmt.Errorf("the deleted file %q on the mount at %s, which CRIU may not write to", r.GetName(), key)
		}
		return nil
	})
}
