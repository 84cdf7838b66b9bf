package worker

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/containerd/api/types"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/failure"
)

// rootfsFile in the bundle says that a container's root file system is changed, and how it was. It is there until the container runs.
const rootfsFile = "cryo-rootfs"

// lockTime bounds how long a process that writes into a root file system is waited for.
const lockTime = 30 * time.Second

// rootfs is a root file system before it was changed: the directory where overlayfs keeps changes, which was empty.
type rootfs struct {
	Upper string    `json:"upper"`
	Mode  uint32    `json:"mode"`
	UID   int       `json:"uid"`
	GID   int       `json:"gid"`
	Time  time.Time `json:"time"` // of its last change
}

// notFresh returns the error that changes of a container's root file system could not be undone, so that none are made.
func notFresh(problem string) error {
	return failure.New(errdefs.ErrFailedPrecondition, "create a new container of the image, with the snapshotter overlayfs", "rootfs-fresh: %s", problem).By("rootfs-fresh")
}

// NoteRootfs writes down in the bundle how a root file system is that is going to be changed, for [UndoRootfs].
func NoteRootfs(bundle string, mounts []*types.Mount) error {
	upper := UpperDir(mounts)
	if upper == "" {
		return notFresh("the container's root file system is no overlay with a directory for changes, and what a restore changes could not be undone")
	}
	entries, err := os.ReadDir(upper)
	if err != nil {
		return fmt.Errorf("look into the container's root file system: %w", err)
	}
	if len(entries) > 0 {
		return notFresh("the container's root file system has changes already (" + entries[0].Name() + ")")
	}
	info, err := os.Stat(upper)
	if err != nil {
		return fmt.Errorf("look into the container's root file system: %w", err)
	}
	stat := info.Sys().(*syscall.Stat_t)
	data, err := json.Marshal(rootfs{Upper: upper, Mode: stat.Mode & 0o7777, UID: int(stat.Uid), GID: int(stat.Gid), Time: info.ModTime()})
	if err == nil {
		err = os.WriteFile(filepath.Join(bundle, rootfsFile), data, 0o600)
	}
	if err != nil {
		return fmt.Errorf("write down what a restore changes: %w", err)
	}
	return nil
}

// UpperDir returns the directory where overlayfs keeps what changed; empty if the root file system is of another kind.
func UpperDir(mounts []*types.Mount) string {
	if len(mounts) != 1 || mounts[0].Type != "overlay" {
		return ""
	}
	for _, o := range mounts[0].Options {
		if dir, ok := strings.CutPrefix(o, "upperdir="); ok && filepath.IsAbs(dir) {
			return dir
		}
	}
	return ""
}

// LockRootfs is for a process that changes the root file system: it is not undone until unlock.
func LockRootfs(bundle string) (unlock func(), err error) {
	f, err := os.Open(filepath.Join(bundle, rootfsFile))
	if err != nil {
		return nil, fmt.Errorf("change the root file system: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("change the root file system: %w", err), f.Close())
	}
	return func() { _ = f.Close() }, nil
}

// KeepRootfs leaves the root file system to the container, which runs.
func KeepRootfs(bundle string) error {
	if err := os.Remove(filepath.Join(bundle, rootfsFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("keep the root file system: %w", err)
	}
	return nil
}

// UndoRootfs makes a root file system that was changed as it was, where the container has not run. It must not be mounted.
func UndoRootfs(bundle string) error {
	if err := undoRootfs(bundle); err != nil {
		return fmt.Errorf("undo changes of the root file system: %w", err)
	}
	return nil
}

func undoRootfs(bundle string) error {
	path := filepath.Join(bundle, rootfsFile)
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	for deadline := time.Now().Add(lockTime); ; time.Sleep(10 * time.Millisecond) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("a process still writes into it: %w", err)
		}
	}
	var r rootfs
	if err := json.NewDecoder(f).Decode(&r); err != nil || !filepath.IsAbs(r.Upper) {
		return fmt.Errorf("%s: %w", path, errors.Join(err, errdefs.ErrDataLoss))
	}
	entries, err := os.ReadDir(r.Upper)
	if errors.Is(err, fs.ErrNotExist) { // it has been removed as a whole
		return KeepRootfs(bundle)
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(r.Upper, e.Name())); err != nil {
			return err
		}
	}
	if err := errors.Join(os.Chown(r.Upper, r.UID, r.GID), unix.Chmod(r.Upper, r.Mode), os.Chtimes(r.Upper, r.Time, r.Time)); err != nil {
		return err
	}
	return KeepRootfs(bundle)
}
