package restore

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/store"
)

// Usage is what takes space, in bytes.
type Usage struct {
	Snapshots []SnapshotUsage `json:"snapshots"`
	store.Usage
	Free int64 `json:"free"` // under the root
}

// SnapshotUsage is the part of one of them.
type SnapshotUsage struct {
	Reference string `json:"reference"`
	Digest    string `json:"digest"`
	Size      int64  `json:"size"`   // bytes of all blobs
	Own       int64  `json:"own"`    // of which no other snapshot has
	Shared    int64  `json:"shared"` // the others
}

// DiskUsage tells how much space snapshots take in the local store, and what else does.
func DiskUsage(ctx context.Context, s *store.Store) (u Usage, err error) {
	used, err := s.Usage(ctx)
	if err != nil {
		return u, err
	}
	u = Usage{Snapshots: []SnapshotUsage{}, Usage: used}
	for _, n := range used.Snapshots {
		u.Snapshots = append(u.Snapshots, SnapshotUsage{Reference: n.Ref, Digest: n.Descriptor.Digest.String(), Size: n.Bytes, Own: n.Own, Shared: n.Bytes - n.Own})
	}
	var at unix.Statfs_t
	if err := unix.Statfs(s.Root(), &at); err != nil {
		return u, fmt.Errorf("look for free space under %s: %w", s.Root(), err)
	}
	u.Free = int64(at.Bavail) * at.Bsize
	return u, nil
}
