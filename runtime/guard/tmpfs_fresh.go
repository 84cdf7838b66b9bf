package guard

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// fresh wants a directory to be a file system in memory that has just been made. The host's devtmpfs, which every mount of that kind shows, is never empty.
func fresh(dir string) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return fmt.Errorf("look at the directory: %w", err)
	}
	if fs.Type != unix.TMPFS_MAGIC {
		return fmt.Errorf("the directory is no tmpfs, but of type %#x", fs.Type)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("look at the directory: %w", err)
	}
	if len(entries) > 0 {
		return fmt.Errorf("the directory is not empty: it has %.300q", entries[0].Name())
	}
	return nil
}
