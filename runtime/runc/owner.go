package runc

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/failure"
)

// foreign returns the error that runc has a container of this name for another client: another containerd with the same namespace and the same directory of runc's.
func foreign(text string, args ...any) error {
	return failure.New(errdefs.ErrAlreadyExists, "choose another name (cryo restore --name), or remove that container by its own containerd", text, args...)
}

// MarkAnnotation of a bundle's specification has a random value. runc keeps it in its state of the container: a container of an earlier bundle of the same path has another, and still
// runs where containerd has lost its state directory.
const MarkAnnotation = "io.cryo.bundle"

// Foreign returns an error, AlreadyExists, if what runc has by this name is not this container's: then nothing of it may be touched. It goes by the bundle and its mark in
// runc's state, and where there is none yet, by the root file system that a restore has mounted.
func (c Container) Foreign() error {
	s, err := c.state()
	switch {
	case err == nil:
		bundle := s.label("bundle")
		if same(bundle, c.Bundle) && s.label(MarkAnnotation) != c.Mark {
			return failure.New(errdefs.ErrAlreadyExists, fmt.Sprintf("choose another name (cryo restore --name), or end that container: runc --root %s delete --force %s", c.Runtime.Root, c.ID),
				"runc has a container %s that containerd does not know any more, as where its state directory was removed while the container ran; it is left as it is", c.ID)
		}
		if !same(bundle, c.Bundle) {
			return foreign("another containerd on this machine has a container %s, with the bundle %q, and both use %s", c.ID, bundle, c.Runtime.Root)
		}
	case errors.Is(err, fs.ErrNotExist):
		if isMount(filepath.Join(c.Runtime.Root, c.ID, criuRoot)) && !c.restores() {
			return foreign("another containerd on this machine restores a container %s at the moment, and both use %s", c.ID, c.Runtime.Root)
		}
	default:
		return err // where that is not known, nothing is touched
	}
	return nil
}

// restores reports whether the root file system that runc has mounted for a restore by this name is the container's.
func (c Container) restores() bool {
	rootfs := filepath.Join(c.Bundle, "rootfs")
	var spec struct {
		Root struct {
			Path string `json:"path"`
		} `json:"root"`
	}
	if data, err := os.ReadFile(filepath.Join(c.Bundle, "config.json")); err == nil && json.Unmarshal(data, &spec) == nil && spec.Root.Path != "" {
		if rootfs = spec.Root.Path; !filepath.IsAbs(rootfs) {
			rootfs = filepath.Join(c.Bundle, rootfs)
		}
	}
	own, errOwn := os.Stat(rootfs)
	mounted, err := os.Stat(filepath.Join(c.Runtime.Root, c.ID, criuRoot))
	return errOwn == nil && err == nil && os.SameFile(own, mounted)
}

// isMount reports whether something is mounted at a directory. Source: statx(2).
func isMount(dir string) bool {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, dir, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, unix.STATX_TYPE, &st)
	return err == nil && st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}

// label returns the value of a label that runc has noted; empty if it has not. The bundle's comes after those of the specification's annotations. Source: runc,
// libcontainer/specconv, CreateLibcontainerConfig.
func (s state) label(name string) string {
	for _, label := range slices.Backward(s.Config.Labels) {
		if value, ok := strings.CutPrefix(label, name+"="); ok {
			return value
		}
	}
	return ""
}

// same reports whether two paths are of one directory, by whatever names. One that is gone has but one name.
func same(a, b string) bool {
	if filepath.Clean(a) == filepath.Clean(b) {
		return true
	}
	one, errA := os.Stat(a)
	two, errB := os.Stat(b)
	return errA == nil && errB == nil && os.SameFile(one, two)
}
