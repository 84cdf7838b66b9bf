package shim

import (
	"context"

	"github.com/containerd/log"
)

// warn logs that something could not be done that no caller depends on; nil is no error.
func warn(ctx context.Context, doing string, err error) {
	if err != nil {
		log.G(ctx).WithError(err).Warn(doing)
	}
}
