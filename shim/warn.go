package shim

import (
	"context"

	"github.com/containerd/log"
)

// warn logs err, unless it is nil. doing is what failed; the caller goes on without it.
func warn(ctx context.Context, doing string, err error) {
	if err != nil {
		log.G(ctx).WithError(err).Warn(doing)
	}
}
