package runc

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/spec/failure"
)

// foreign says that runc has a container of this name for somebody else: another containerd with the same namespace and the same directory of runc's.
func foreign(text string, args ...any) error {
	return failure.New(errdefs.ErrAlreadyExists, "choose another name (cryo restore --name), or remove that container by its own containerd", text, args...)
}

// Foreign returns an error, AlreadyExists, if what runc has by this name is not this container's: then nothing of it may be touched. It goes by the bundle in
// runc's state, and where there is none yet, by the root file system that a restore has mounted.
func (c Container) Foreign() error {
	s, err := c.state()
	switch {
	case err == nil:
		if bundle := s.bundle(); bundle != "" && !same(bundle, c.Bundle) {
			return foreign("another containerd on this machine has a container %s, with the bundle %s, and both use %s", c.ID, bundle, c.Runtime.Root)
		}
	case errors.Is(err, fs.ErrNotExist):
		dir := filepath.Join(c.Runtime.Root, c.ID)
		mounted, own := device(filepath.Join(dir, criuRoot)), device(filepath.Join(c.Bundle, "rootfs"))
		if mounted != 0 && mounted != device(dir) && own != 0 && own != device(c.Bundle) && mounted != own {
			return foreign("another containerd on this machine restores a container %s at the moment, and both use %s", c.ID, c.Runtime.Root)
		}
	default:
		return err // who cannot tell touches nothing
	}
	return nil
}

// bundle is the container's bundle as runc has noted it; empty if it has not. Source: runc, libcontainer/specconv, CreateLibcontainerConfig.
func (s state) bundle() string {
	for _, label := range s.Config.Labels {
		if bundle, ok := strings.CutPrefix(label, "bundle="); ok {
			return bundle
		}
	}
	return ""
}

// same tells whether two paths are of one directory, by whatever names. One that is gone has but one name.
func same(a, b string) bool {
	if filepath.Clean(a) == filepath.Clean(b) {
		return true
	}
	one, errA := os.Stat(a)
	two, errB := os.Stat(b)
	return errA == nil && errB == nil && os.SameFile(one, two)
}

// device gives the number of the file system that a directory is on; 0 if there is no such directory.
func device(dir string) uint64 {
	var stat unix.Stat_t
	if unix.Lstat(dir, &stat) != nil {
		return 0
	}
	return stat.Dev
}
