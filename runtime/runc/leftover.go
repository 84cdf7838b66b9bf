package runc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	gorunc "github.com/containerd/go-runc"
	"golang.org/x/sys/unix"
)

// deletePause is between two tries to have runc delete a container.
const deletePause = 50 * time.Millisecond

// Delete ends what is left of the container, and has runc forget it. runc gives up where the cgroup still has processes after a third of a second, though they are about
// to end, and then says for ever that there is a container of this name.
func (c Container) Delete(ctx context.Context) error {
	for c.Known() {
		if err := c.Runtime.Delete(ctx, c.ID, &gorunc.DeleteOpts{Force: true}); err == nil {
			return nil
		}
		select {
		case <-time.After(deletePause):
		case <-ctx.Done():
			return c.explain("delete", ctx.Err())
		}
	}
	return nil
}

// criuRoot is where runc mounts the root file system for a restore, in its own directory for the container. Source: runc, libcontainer/criu_linux.go.
const criuRoot = "criu-root"

// SweepRestore removes what a runc leaves that was killed while it restored the container, as it is together with its shim:
// a mount of the rootfs in its own directory for the container, and that directory, because of which it would say later
// that there is a container of this name. A directory that holds more is one of a container that runc knows, and stays; so does one that another runc is at, and one with another
// root file system.
func (c Container) SweepRestore() error {
	dir := filepath.Join(c.Runtime.Root, c.ID)
	root := filepath.Join(dir, criuRoot)
	if _, err := os.Lstat(root); err != nil || slices.ContainsFunc(processes(), c.isRestoring) {
		return nil //nolint:nilerr // there is none
	}
	if isMount(root) {
		if !c.restores() {
			return nil
		}
		if err := unix.Unmount(root, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("unmount %s: %w", root, err)
		}
	}
	// Never more than empty directories: if it were mounted still, these would be the container's files.
	for _, empty := range []string{root, dir} {
		if err := unix.Rmdir(empty); err != nil && !errors.Is(err, unix.ENOTEMPTY) {
			return fmt.Errorf("remove %s: %w", empty, err)
		}
	}
	return nil
}

// isRestoring reports whether a process is a runc that restores a container of this name, whoever has started it.
func (c Container) isRestoring(pid int) bool {
	line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // it may have ended
	words := strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")
	root := slices.Index(words, "--root") + 1
	return slices.Contains(words, "restore") && words[len(words)-1] == c.ID && words[root] == c.Runtime.Root && !Ended(pid)
}
