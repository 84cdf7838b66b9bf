package rootfs

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/containerd/containerd/v2/pkg/archive"
)

// Apply applies a layer that [Diff] wrote to the rootfs mounted at root. Names in the layer cannot lead out of root: that is
// the business of containerd's archive package, which does the work.
//
// A layer that is not a tar gives a [*LayerError], a full file system a [*FullError]; errors of layer are passed on. What was
// applied before an error stays: root must then be thrown away.
func Apply(ctx context.Context, root string, layer io.Reader) error {
	if _, err := archive.Apply(ctx, root, layer, archive.WithFilter(filter)); err != nil {
		switch {
		case errors.As(err, new(*LayerError)):
			return err
		case errors.Is(err, tar.ErrHeader) || errors.Is(err, io.ErrUnexpectedEOF):
			return &LayerError{Reason: fmt.Sprintf("it is not a tar: %v", err)}
		}
		return full(fmt.Errorf("apply rootfs difference: %w", err))
	}
	return nil
}

// filter refuses sparse files: Diff writes none, and a few bytes of tar could claim to be a file of any length.
func filter(h *tar.Header) (bool, error) {
	if h.Typeflag == tar.TypeGNUSparse {
		return false, &LayerError{Path: h.Name, Reason: "is a sparse file"}
	}
	for key := range h.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse.") {
			return false, &LayerError{Path: h.Name, Reason: "is a sparse file"}
		}
	}
	return true, nil
}
