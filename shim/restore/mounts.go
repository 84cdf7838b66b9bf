package restore

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image/fit"
	"github.com/cryo-project/cryo/shim/restorer"
)

// NoMountError says that the snapshot has no such mount. Its kind is InvalidArgument.
type NoMountError struct {
	Destination string
	Have        []string
}

func (e *NoMountError) Error() string {
	return fmt.Sprintf("the snapshot has no bind mount at %s", e.Destination)
}

// Hint says what to do.
func (e *NoMountError) Hint() string {
	if len(e.Have) == 0 {
		return "it has none at all: leave --mount out"
	}
	return "it has bind mounts at " + strings.Join(e.Have, ", ")
}

// Unwrap gives the kind.
func (e *NoMountError) Unwrap() error { return errdefs.ErrInvalidArgument }

// replaceMounts gives bind mounts of the specification other sources and returns their destinations.
func replaceMounts(spec *specs.Spec, replace []restorer.Mount) (destinations []string, err error) {
	for _, r := range replace {
		found := false
		var have []string
		for i, m := range spec.Mounts {
			if !fit.IsBind(m) {
				continue
			}
			have = append(have, m.Destination)
			if filepath.Clean(m.Destination) == r.Destination {
				spec.Mounts[i].Source = r.Source
				destinations = append(destinations, m.Destination)
				found = true
			}
		}
		if !found {
			return nil, &NoMountError{Destination: r.Destination, Have: have}
		}
	}
	return destinations, nil
}
