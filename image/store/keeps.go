package store

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// keeps reports whether only root can have written a blob since it came into the store: by the file, or by putting another in its place.
func (s *Store) keeps(blob fs.FileInfo) bool {
	if !roots(blob) || blob.Mode().Perm()&0o022 != 0 {
		return false
	}
	// Directories up to the root of the file system; with links resolved, since each of them is a place of its own.
	dir, err := filepath.EvalSymlinks(s.blobs())
	for ; err == nil; dir = filepath.Dir(dir) {
		var i fs.FileInfo
		if i, err = os.Lstat(dir); err != nil {
			return false
		}
		// In a sticky directory others cannot move what is root's.
		if !roots(i) || i.Mode().Perm()&0o022 != 0 && i.Mode()&fs.ModeSticky == 0 {
			return false
		}
		if dir == filepath.Dir(dir) {
			return true
		}
	}
	return false
}

// locals are file systems of which this host alone writes what root owns. Of those of a network, and of a hypervisor, owner and mode say
// nothing of who else does. Source: linux/magic.h, statfs(2).
var locals = []int64{unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.F2FS_SUPER_MAGIC, unix.TMPFS_MAGIC, unix.OVERLAYFS_SUPER_MAGIC, zfsMagic}

const zfsMagic = 0x2fc12fc1 // ZFS_SUPER_MAGIC of OpenZFS

// local reports whether a file is on one of them.
func local(f *os.File) bool {
	var s unix.Statfs_t
	err := unix.Fstatfs(int(f.Fd()), &s)
	return err == nil && slices.Contains(locals, int64(s.Type))
}

// roots reports whether root owns a file.
func roots(i fs.FileInfo) bool {
	sys, ok := i.Sys().(*syscall.Stat_t)
	return ok && sys.Uid == 0
}
