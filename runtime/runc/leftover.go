package runc

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// SweepRestore removes what a runc leaves that was killed while it restored the container, as it is together with its shim:
// a mount of the rootfs in its own directory for the container, and that directory, because of which it would say later
// that there is a container of this name. A directory that holds more is one of a container that runc knows, and stays.
func (c Container) SweepRestore() error {
	dir := filepath.Join(c.Runtime.Root, c.ID)
	root := filepath.Join(dir, "criu-root") // runc, libcontainer/criu_linux.go
	if _, err := os.Lstat(root); err != nil {
		return nil
	}
	if err := unix.Unmount(root, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("unmount %s: %w", root, err)
	}
	// Never more than empty directories: if it were mounted still, these would be the container's files.
	for _, empty := range []string{root, dir} {
		if err := unix.Rmdir(empty); err != nil && !errors.Is(err, unix.ENOTEMPTY) {
			return fmt.Errorf("remove %s: %w", empty, err)
		}
	}
	return nil
}
