package warm

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// mounted says whether the tmpfs is there. Nothing else is ever believed to hold memory that was verified.
func (d *Dir) mounted() (bool, error) {
	var at, above unix.Stat_t
	var fsys unix.Statfs_t
	err := unix.Lstat(d.path, &at)
	if err == nil {
		err = unix.Lstat(filepath.Dir(d.path), &above)
	}
	if err == nil {
		err = unix.Statfs(d.path, &fsys)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("look at %s: %w", d.path, err)
	}
	return at.Mode&unix.S_IFMT == unix.S_IFDIR && at.Dev != above.Dev && fsys.Type == unix.TMPFS_MAGIC, nil
}

// mount makes sure of the tmpfs. Its size is not what bounds it: budgets do.
func (d *Dir) mount() error {
	if is, err := d.mounted(); err != nil || is {
		return err
	}
	if err := os.MkdirAll(d.path, 0o700); err != nil {
		return fmt.Errorf("make a place for prewarmed snapshots: %w", err)
	}
	const flags, options = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, "mode=0700,size=100%"
	err := unix.Mount("cryo", d.path, "tmpfs", flags, options+",noswap")
	if errors.Is(err, unix.EINVAL) { // before Linux 6.4
		err = unix.Mount("cryo", d.path, "tmpfs", flags, options)
	}
	if err != nil {
		return fmt.Errorf("mount a tmpfs on %s: %w", d.path, err)
	}
	return nil
}

// unmount takes the tmpfs away if nothing is in it. Where somebody still reads what was removed, it stays until the next time.
func (d *Dir) unmount() error {
	entries, err := os.ReadDir(d.path)
	if err != nil || len(entries) > 0 {
		return err
	}
	if err := unix.Unmount(d.path, unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("unmount %s: %w", d.path, err)
	}
	return nil
}
