package gpu

import (
	"context"
	"slices"

	"github.com/containerd/log"
)

// borrow takes memory that was loaded for this snapshot, on the devices that it would be loaded to; nil: there is none. Whatever is wrong with
// it, it is loaded anew. What the driver said then of its devices holds, but for what is free.
func (r *Restore) borrow(ctx context.Context) *PrewarmedLease {
	if r.Kept == nil {
		return nil
	}
	kept, err := r.Kept(func(i Prewarmed) bool {
		places, err := r.Record.places(r.visible(i.Facts), r.Map)
		return err == nil && len(i.Pieces) > 0 && slices.Equal(Pieces(&r.Record.GPU, places), i.Pieces)
	})
	if err != nil {
		log.G(ctx).WithError(err).Warn("use device memory that was kept loaded; it is loaded anew")
	}
	if kept != nil {
		r.coming = &importTask{kept: kept, files: slices.Clone(kept.Files()), task: beside(func() error { return nil })}
	}
	return kept
}
