package shim

import (
	"path/filepath"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/runtime/guard"
)

// compare compares the container that CRIU has restored, and that does not run yet, with what it was granted: by its specification, and by the user who restores it. Its GPUs must fit.
// Then the restore process has the last word.
func (c *container) compare(init, criu int) error {
	spec, err := c.bundle.spec()
	if err != nil {
		return err
	}
	if err := guard.Compare(init, criu, guard.Container{Spec: spec, Rootfs: c.bundle.rootfs(spec), Allow: c.prepared.Allowed, User: c.asks()}); err != nil {
		return err
	}
	if c.fits != nil {
		if err := c.fits(); err != nil {
			return err
		}
	}
	if err := c.tellChanges(init, spec); err != nil {
		return err
	}
	if err := c.process.Commit(); err != nil {
		return err
	}
	return c.freezeRestored(init)
}

// rootfs is where the container's root file system is.
func (b bundle) rootfs(spec *specs.Spec) string {
	switch {
	case spec.Root == nil:
		return filepath.Join(b.dir, "rootfs")
	case filepath.IsAbs(spec.Root.Path):
		return spec.Root.Path
	}
	return filepath.Join(b.dir, spec.Root.Path)
}
