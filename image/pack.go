package image

import (
	"context"
	"io"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// PackSource is what a snapshot is made of.
type PackSource struct {
	// Images is the directory with CRIU's images, pages-*.img included.
	Images string
	// RootFS writes the rootfs difference as an uncompressed OCI layer tar; nil: the snapshot has none.
	RootFS func(ctx context.Context, w io.Writer) error
	// Config describes the snapshot; Version, Memory and Processes are filled in by [Pack].
	Config Config
	// Subject is the base image, where a registry shall list the snapshot as its referrer; nil: none.
	Subject *ocispec.Descriptor
}

// PackOptions are the choices of [Pack]; the zero value is good.
type PackOptions struct {
	// SegmentSize is the window of memory that one segment covers, in bytes: a power of two of 1 MiB at least. 0: 256 MiB.
	SegmentSize int64
	// Compression is "zstd" (or empty) or "none".
	Compression string
	// Workers is how many goroutines hash and compress. 0: as many as there are cores.
	Workers int
	// Progress is told how many bytes of memory are packed, as "pack".
	Progress Progress
}

// Pack writes the blobs of a snapshot to dst and returns the descriptor of its manifest. Nothing is tagged.
func Pack(ctx context.Context, dst BlobStore, src PackSource, o PackOptions) (ocispec.Descriptor, error) {
	return ocispec.Descriptor{}, errdefs.ErrNotImplemented
}
