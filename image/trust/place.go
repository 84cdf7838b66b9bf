package trust

import (
	"path"
	"slices"

	"github.com/containerd/continuity/fs"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// PlaceMounts returns mounts with the destinations that they have in a root file system, as runc has them: symbolic links are followed, and none leads out of root. So one at /var/run/secrets is at
// /run/secrets where /var/run is a link to /run. A mount in a container, and CRIU's images, have that destination.
func PlaceMounts(root string, mounts []specs.Mount) ([]specs.Mount, error) {
	placed := slices.Clone(mounts)
	for i, m := range placed {
		at, err := fs.RootPath(root, m.Destination)
		if err != nil {
			return nil, err
		}
		placed[i].Destination = path.Clean("/" + at[len(root):])
	}
	return placed, nil
}
