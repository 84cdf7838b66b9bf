package shim

import (
	"path/filepath"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/runtime/guard"
)

// compare compares the container that CRIU has restored, and that does not run yet, with what it was granted: by its specification, and by the user who restores it. Its GPUs must fit.
// Then the restore process has the last word.
func (c *container) compare(init, criu int) error {
	c.restored.Store(int64(init))
	defer c.restored.Store(0)
	err := c.permit(init, criu)
	if err != nil {
		c.silence(init)
	}
	return err
}

// permit returns why the container may not run; nil: it may. From then on packets reach a member of a group: CRIU has made its sockets by now, and the kernel answers for them.
func (c *container) permit(init, criu int) error {
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
	if c.isPooled() {
		err = c.markPooled()
	} else {
		err = c.tellChanges(init, spec, c.request.ID)
	}
	if err != nil {
		return err
	}
	if err := c.renewHosts(spec); err != nil {
		return err
	}
	if err := c.commit(); err != nil {
		return err
	}
	if err := c.freezeRestored(init); err != nil {
		return err
	}
	if c.prepared.Together == nil {
		return nil
	}
	if err := c.lowerFence(); err != nil {
		return err
	}
	c.probe(guard.ProcessesOf(init))
	return nil
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
