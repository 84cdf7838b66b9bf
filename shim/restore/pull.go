package restore

import (
	"context"
	"time"

	"github.com/cryo-project/cryo/image/registry"
	"github.com/cryo-project/cryo/image/store"
)

// Pulled is a snapshot that is complete in the local store.
type Pulled struct {
	Reference, Digest string
	Transfer          *Transfer // nil: from a file
}

// Pull fetches the snapshot that ref names in a registry or a file ([registry.IsLocation]), if its signatures are accepted. What is in the store is not fetched
// again, so a pull that was interrupted is resumed by repeating it.
func Pull(ctx context.Context, s *store.Store, ref string, o registry.Options, j *Judging) (*Pulled, error) {
	start := time.Now()
	var counts registry.Counts
	o.Counts, o.Judge = &counts, j.Judge
	if registry.IsLocation(ref) {
		name, desc, err := registry.Import(ctx, s, ref, o.Judge, o.Repair)
		if err != nil {
			return nil, err
		}
		return &Pulled{Reference: name, Digest: desc.Digest.String()}, nil
	}
	desc, err := registry.Pull(ctx, s, ref, o)
	if err != nil {
		return nil, err
	}
	return &Pulled{ref, desc.Digest.String(), Transferred(&counts, start)}, nil
}
