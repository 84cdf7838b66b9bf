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

// checkNumbers says whether a config lists more than a reader takes. It holds none of it in memory.
func checkNumbers(b []byte) error {
	if n := countValues(b); n > maxValues {
		return fmt.Errorf("its %d values are more than %d", n, maxValues)
	}
	var c struct {
		Spec json.RawMessage
		GPU  struct {
			CDI    count
			Mounts mounts
		}
	}
	if err := json.Unmarshal(b, &c); err != nil {
		return fmt.Errorf("it is not JSON of the right shape: %w", err)
	}
	if n := len(c.Spec); n > maxSpec {
		return fmt.Errorf("its runtime specification has %d bytes, more than %d", n, maxSpec)
	}
	if n := countValues(c.Spec); n > maxSpecValues {
		return fmt.Errorf("the %d values of its runtime specification are more than %d", n, maxSpecValues)
	}
	var spec struct {
		Mounts mounts
		Linux  struct {
			Namespaces count
			Devices    count
			Resources  struct{ Devices count }
		}
	}
	if len(c.Spec) > 0 {
		if err := json.Unmarshal(c.Spec, &spec); err != nil {
			return fmt.Errorf("it is not JSON of the right shape: %w", err)
		}
	}
	for _, m := range []mounts{spec.Mounts, c.GPU.Mounts} {
		if m.number > maxMounts {
			return fmt.Errorf("its %d mounts are more than %d", m.number, maxMounts)
		}
		if m.parts > maxParts {
			return fmt.Errorf("the paths of its mounts have %d parts, more than %d", m.parts, maxParts)
		}
	}
	if n := max(spec.Linux.Devices, spec.Linux.Resources.Devices, c.GPU.CDI); n > maxDevices {
		return fmt.Errorf("its %d devices are more than %d", n, maxDevices)
	}
	if n := spec.Linux.Namespaces; n > maxNamespaces {
		return fmt.Errorf("its %d namespaces are more than %d", n, maxNamespaces)
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

// count is the length of a list, or of all of them where a key comes more than once.
type count int

// UnmarshalJSON counts.
func (n *count) UnmarshalJSON(b []byte) error {
	var list []nothing
	if err := json.Unmarshal(b, &list); err != nil {
		return err
	}
	*n += count(len(list))
	return nil
}

// mounts counts mounts, which are paths or have them, and the parts of these.
type mounts struct{ number, parts count }

// UnmarshalJSON counts.
func (m *mounts) UnmarshalJSON(b []byte) error {
	var n count
	if err := json.Unmarshal(b, &n); err != nil {
		return err
	}
	if m.number += n; m.number > maxMounts {
		return nil
	}
	var list []mount
	if err := json.Unmarshal(b, &list); err != nil {
		return err
	}
	for _, one := range list {
		m.parts += count(strings.Count(string(one), "/")) + 1
	}
	return nil
}

// mount is its destination.
type mount string

// UnmarshalJSON reads a path, or a member that is one.
func (m *mount) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '"' {
		return json.Unmarshal(b, (*string)(m))
	}
	var of struct{ Destination string }
	err := json.Unmarshal(b, &of)
	*m = mount(of.Destination)
	return err
}

// nothing is any value, and takes no memory.
type nothing struct{}

// UnmarshalJSON keeps nothing.
func (*nothing) UnmarshalJSON([]byte) error { return nil }
