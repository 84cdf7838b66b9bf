package restore

import (
	"context"
	"slices"

	"github.com/containerd/log"
	"github.com/opencontainers/go-digest"

	"github.com/cryo-project/cryo/runtime/gpu/prewarmed"
)

// loadedOf is what is loaded of a snapshot, and free for a restore. What does not answer would only be in the restore's way.
func loadedOf(ctx context.Context, root string, snapshot digest.Digest) []prewarmed.Info {
	all, err := prewarmed.New(root).List(ctx)
	if err != nil {
		log.G(ctx).WithError(err).Warn("look for device memory that is kept loaded") // it is loaded anew
	}
	return slices.DeleteFunc(all, func(i prewarmed.Info) bool {
		if i.Digest != snapshot.String() {
			return true
		}
		if i.Mute {
			if err := i.End(); err != nil {
				log.G(ctx).WithError(err).Warn("end what keeps device memory and does not answer")
			}
		}
		return i.Leased || i.Mute
	})
}
