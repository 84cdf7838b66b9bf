package image

import (
	"context"
	"io"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// BlobStore is what [Pack] writes to; *store.Store implements it.
type BlobStore interface {
	// Fetch opens a blob. The reader verifies what it reads.
	Fetch(ctx context.Context, d ocispec.Descriptor) (io.ReadCloser, error)
	// Exists reports whether the store holds the blob.
	Exists(ctx context.Context, d ocispec.Descriptor) (bool, error)
	// Create starts a blob whose digest and size are not known yet.
	Create(ctx context.Context) (BlobWriter, error)
}

// BlobWriter is a blob that is being written; it is not seen before Commit.
type BlobWriter interface {
	io.Writer
	// Commit stores the blob under its digest; a blob that is there already is kept. It is durable, at the latest, when a manifest
	// that needs it has a name.
	Commit(ctx context.Context, mediaType string) (ocispec.Descriptor, error)
	// Close drops what was not committed.
	Close() error
}
