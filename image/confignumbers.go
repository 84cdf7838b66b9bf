package image

import (
	"encoding/json"
	"fmt"
	"strings"
)

// Limits of what a config lists. A config of 16 MiB may list millions of things that have no length, and each costs memory.
const (
	maxMounts  = 4096
	maxDevices = 4096 // nodes, rules for them, CDI devices
	// maxNamespaces is more than there are kinds.
	maxNamespaces = 64
	// maxValues is more than the processes make whose images a snapshot may have.
	maxValues = 1 << 19
	// What the runtime specification has of that.
	maxSpec       = 2 << 20 // bytes
	maxSpecValues = 1 << 17
	// maxParts bounds the names on the paths of all mounts: whoever restores makes a directory of each that is not there.
	maxParts = 1 << 14
	// maxText bounds the names of a container, of its image, and of what ran it, bytes.
	maxText = 4 << 10
)

// checkNumbers says whether a config, of which JSON has no more than maxValues, lists more than a reader takes.
func (c *Config) checkNumbers() error {
	if n := len(c.Spec); n > maxSpec {
		return fmt.Errorf("its runtime specification has %d bytes, more than %d", n, maxSpec)
	}
	if n := countValues(c.Spec); n > maxSpecValues {
		return fmt.Errorf("the %d values of its runtime specification are more than %d", n, maxSpecValues)
	}
	var spec struct {
		Mounts []struct{ Destination string }
		Linux  struct {
			Namespaces []struct{}
			Devices    []struct{}
			Resources  struct{ Devices []struct{} }
		}
	}
	if len(c.Spec) > 0 {
		if err := json.Unmarshal(c.Spec, &spec); err != nil {
			return fmt.Errorf("it is not JSON of the right shape: %w", err)
		}
	}
	var mounts []string
	for _, m := range spec.Mounts {
		mounts = append(mounts, m.Destination)
	}
	gpu := &GPU{}
	if c.GPU != nil {
		gpu = c.GPU
	}
	for _, paths := range [][]string{mounts, gpu.Mounts} {
		if n := len(paths); n > maxMounts {
			return fmt.Errorf("its %d mounts are more than %d", n, maxMounts)
		}
		if n := strings.Count(strings.Join(paths, "/"), "/") + 1; n > maxParts {
			return fmt.Errorf("the paths of its mounts have %d parts, more than %d", n, maxParts)
		}
	}
	if n := max(len(spec.Linux.Devices), len(spec.Linux.Resources.Devices), len(gpu.CDI)); n > maxDevices {
		return fmt.Errorf("its %d devices are more than %d", n, maxDevices)
	}
	if n := len(spec.Linux.Namespaces); n > maxNamespaces {
		return fmt.Errorf("its %d namespaces are more than %d", n, maxNamespaces)
	}
	for _, text := range []string{c.Container.ID, c.Container.Namespace, c.Container.Runtime, c.Container.Snapshotter, c.Container.Image} {
		if len(text) > maxText {
			return fmt.Errorf("the name %.40q has %d bytes, more than %d", text, len(text), maxText)
		}
	}
	return nil
}

// countValues counts the commas and opening brackets of JSON: there is no value without one, but the first.
func countValues(b []byte) (n int) {
	text := false
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case c == '"':
			text = !text
		case text && c == '\\':
			i++
		case !text && (c == ',' || c == '{' || c == '['):
			n++
		}
	}
	return n
}
