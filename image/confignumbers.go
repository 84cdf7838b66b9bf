package image

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/cryo-project/cryo/image/format"
)

// Limits of what a config lists. A config of 16 MiB may list millions of things that have no length, and each costs memory.
const (
	maxMounts  = 4096
	maxDevices = 4096 // nodes, rules for them, CDI devices
	// maxNamespaces is more than there are kinds.
	maxNamespaces = 64
	maxSpec       = 2 << 20 // bytes of the runtime specification
	// maxParts bounds the names on the paths of all mounts: a restore makes a directory of each that is not there.
	maxParts = 1 << 14
	// maxText bounds the names of a container, of its image, and of what ran it, bytes.
	maxText = 4 << 10
)

// The limits of a config, which has more values than the processes make whose images a snapshot may have, and of the runtime specification in it.
var (
	configLimits = format.JSONLimits{Bytes: maxConfig, Values: 1 << 19, Depth: 64}
	specLimits   = format.JSONLimits{Values: 1 << 17, Depth: 64}
)

// checkNumbers returns an error if a config within its limits lists more than a reader takes.
func (c *Config) checkNumbers() error {
	if n := len(c.Spec); n > maxSpec {
		return fmt.Errorf("its runtime specification has %d bytes, more than %d", n, maxSpec)
	}
	if err := specLimits.Check(c.Spec); err != nil {
		return fmt.Errorf("its runtime specification: %w", err)
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
