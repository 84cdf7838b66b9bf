package shim

import (
	"context"
	"errors"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/runtime/criu"
	"github.com/cryo-project/cryo/runtime/guard"
)

// adaptMemory prepares the memory of a container that is to be restored for this host ([criu.AdaptMemory]). Its processes share equal memory with other restored containers if the configuration wants that, and else
// share none, whatever the snapshot's did. Without the kernel's help the container is restored all the same.
func (s *service) adaptMemory(ctx context.Context, c *container) error {
	share := s.config.Restore.ShareMemory
	if share {
		if err := guard.SharingSupported("/"); err != nil {
			log.G(ctx).WithError(err).WithField("id", c.request.ID).WithField("hint", failure.Hint(err)).Warn("a restored container shares no memory with others")
			share = !errors.Is(err, errdefs.ErrNotImplemented)
		}
	}
	if err := criu.AdaptMemory(c.restore, share); err != nil {
		return err
	}
	return guard.ShareMemory(c.bundle.dir, share)
}
