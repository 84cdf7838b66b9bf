package device

import (
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
)

// ParseUUID returns the bytes of a GPU's UUID, "GPU-" and 36 characters; the driver wants it so.
func ParseUUID(s string) ([16]byte, error) {
	var id [16]byte
	rest, ok := strings.CutPrefix(s, "GPU-")
	groups := strings.Split(rest, "-")
	if ok = ok && len(groups) == 5; ok {
		for i, n := range []int{8, 4, 4, 4, 12} {
			ok = ok && len(groups[i]) == n
		}
	}
	if ok {
		n, err := hex.Decode(id[:], []byte(strings.Join(groups, "")))
		ok = err == nil && n == len(id)
	}
	if !ok {
		return [16]byte{}, fmt.Errorf("parse GPU UUID %q: %w", s, errdefs.ErrInvalidArgument)
	}
	return id, nil
}
