package criu

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/fdinfo"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/mnt"
	remap "github.com/checkpoint-restore/go-criu/v8/crit/images/remap-file-path"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/cryo-project/cryo/image/failure"
)

// CheckLinks refuses, as FailedPrecondition, a dump in dir that has a file which is open by a name that is gone, and which a restore could not make or find: one that has another name, since
// CRIU gives such a file a name of its own for the restore, but takes it away again at the end of a dump that leaves the processes; and one on a read-only mount of the host's, where the
// review of images (image/trust) lets nothing be made. The files of a tmpfs that is the container's own are in the dump by then, with CRIU's name: there such a file comes back. glibc makes
// every named semaphore so (sem_open), and Python's multiprocessing those of each spawned process.
func CheckLinks(dir string) error {
	remaps := map[uint32]*remap.RemapFilePathEntry{} // by the file that is open
	err := eachRecord(dir, "remap-fpath.img", func(data []byte) error {
		var r remap.RemapFilePathEntry
		if err := proto.Unmarshal(data, &r); err != nil {
			return err
		}
		if r.GetRemapType() != remap.RemapType_PROCFS {
			remaps[r.GetOrigId()] = &r
		}
		return nil
	})
	if err != nil || len(remaps) == 0 {
		return err
	}
	mounts, err := mountsIn(dir)
	if err != nil {
		return err
	}
	linked := func(path string) *failure.Error {
		return failure.New(errdefs.ErrFailedPrecondition, "have the program close the file or open it by its new name",
			"%s is open, its name is gone, and the file has another one", path)
	}
	seen := map[uint32]bool{}
	var refused *failure.Error // the first one
	err = eachRecord(dir, "files.img", func(data []byte) error {
		var f fdinfo.FileEntry
		if err := (proto.UnmarshalOptions{AllowPartial: true}).Unmarshal(data, &f); err != nil {
			return err
		}
		r := remaps[f.GetReg().GetId()]
		if f.GetReg() == nil || r == nil {
			return nil
		}
		seen[f.GetReg().GetId()] = true
		path, on := filepath.Join("/", f.GetReg().GetName()), mounts[uint32(f.GetReg().GetMntId())]
		if r.GetRemapType() == remap.RemapType_LINKED {
			if hosts(on) || mnt.Fstype(on.GetFstype()) != mnt.Fstype_TMPFS {
				refused = cmp.Or(refused, linked(path))
			}
		} else if hosts(on) && on.GetFlags()&unix.MS_RDONLY != 0 {
			refused = cmp.Or(refused, failure.New(errdefs.ErrFailedPrecondition, "have the program close the file, or open the one that has taken its place",
				"%s is open and was deleted, on a read-only mount of the host's, where a restore cannot make it", path))
		}
		return nil
	})
	for id, r := range remaps {
		if !seen[id] && r.GetRemapType() == remap.RemapType_LINKED {
			refused = cmp.Or(refused, linked("a file"))
		}
	}
	if refused != nil {
		return errors.Join(err, refused)
	}
	return err
}

// hosts reports whether a mount has its source on the host: runc binds it, and CRIU does not save its files.
func hosts(m *mnt.MntEntry) bool { return m.GetExtKey() != "" }

// mountsIn reads the mounts of a dump, by their ids.
func mountsIn(dir string) (map[uint32]*mnt.MntEntry, error) {
	names, err := filepath.Glob(filepath.Join(dir, "mountpoints-*.img"))
	if err != nil {
		return nil, fmt.Errorf("find the images of mounts: %w", err)
	}
	mounts := map[uint32]*mnt.MntEntry{}
	for _, name := range names {
		err = errors.Join(err, eachRecord(dir, filepath.Base(name), func(data []byte) error {
			var m mnt.MntEntry
			if err := proto.Unmarshal(data, &m); err != nil {
				return err
			}
			mounts[m.GetMntId()] = &m
			return nil
		}))
	}
	return mounts, err
}

// CheckNested refuses, as FailedPrecondition, a dump in dir of processes with namespaces of their own within the container: the review of images (image/trust) does.
func CheckNested(dir string) error {
	for _, of := range []struct{ kind, images string }{{"mount", "mountpoints"}, {"network", "netns"}} { // CRIU 4.2 dumps no others
		names, err := filepath.Glob(filepath.Join(dir, of.images+"-[0-9]*.img"))
		if err != nil {
			return fmt.Errorf("find the images of namespaces: %w", err)
		}
		if len(names) > 1 {
			return failure.New(errdefs.ErrFailedPrecondition, "have them leave it, or end them, before the checkpoint",
				"processes of the container have a %s namespace of their own, which a restore would not make", of.kind)
		}
	}
	return nil
}
