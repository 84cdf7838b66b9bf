package shim

import (
	"path/filepath"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image/trust"
)

// followLinks replaces sources of bind mounts that are symbolic links by what they lead to, before a restore. runc follows them
// when it makes a container, but CRIU mounts the link itself. CDI specifications name links where the driver's files are such.
func (b bundle) followLinks(spec *specs.Spec) {
	for i, m := range spec.Mounts {
		if m.Type != "bind" && !slices.Contains(m.Options, "bind") && !slices.Contains(m.Options, "rbind") {
			continue
		}
		source := m.Source
		if !filepath.IsAbs(source) {
			source = filepath.Join(b.dir, source)
		}
		if found, err := filepath.EvalSymlinks(source); err == nil { // runc says what is missing
			spec.Mounts[i].Source = found
		}
	}
}

// placeMounts writes into the bundle's specification where mounts are in the root file system. That is mounted now, and does not change until the container runs. So the review, the comparison with the restored container and runc look at
// the same places.
func (c *container) placeMounts() error {
	return c.bundle.changeSpec(func(spec *specs.Spec) (err error) {
		if spec.Root != nil {
			spec.Mounts, err = trust.PlaceMounts(c.bundle.rootfs(spec), spec.Mounts)
		}
		return err
	})
}
