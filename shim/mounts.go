package shim

import (
	"path/filepath"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
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
