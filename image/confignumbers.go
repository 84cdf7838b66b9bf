package image

import (
	"encoding/json"
	"fmt"
)

// Limits of what a config lists. A config of 16 MiB may list millions of things that have no length, and each costs memory.
const (
	maxMounts  = 4096
	maxDevices = 4096 // nodes, and rules for them
	// maxValues is more than processes of real names make of 16 MiB.
	maxValues = 2 << 20
)

// checkNumbers says whether a config lists more than a reader takes. It holds none of it in memory.
func checkNumbers(b []byte) error {
	if n := countValues(b); n > maxValues {
		return fmt.Errorf("its %d values are more than %d", n, maxValues)
	}
	var c struct {
		Spec struct {
			Mounts count
			Linux  struct {
				Devices   count
				Resources struct{ Devices count }
			}
		}
	}
	if err := json.Unmarshal(b, &c); err != nil {
		return fmt.Errorf("it is not JSON of the right shape: %w", err)
	}
	if n := c.Spec.Mounts; n > maxMounts {
		return fmt.Errorf("its %d mounts are more than %d", n, maxMounts)
	}
	if n := max(c.Spec.Linux.Devices, c.Spec.Linux.Resources.Devices); n > maxDevices {
		return fmt.Errorf("its %d devices are more than %d", n, maxDevices)
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

// nothing is any value, and takes no memory.
type nothing struct{}

// UnmarshalJSON keeps nothing.
func (*nothing) UnmarshalJSON([]byte) error { return nil }
