package store

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// keeps says whether only root can have written a blob since it came into the store: by the file, or by putting another in its place.
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

// roots says whether root owns a file.
func roots(i fs.FileInfo) bool {
	sys, ok := i.Sys().(*syscall.Stat_t)
	return ok && sys.Uid == 0
}
