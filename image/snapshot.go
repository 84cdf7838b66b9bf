package image

import (
	"context"
	"io"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Fetcher opens blobs. It need not be trusted: what it gives is verified here. oras-go's content.Fetcher has this shape.
type Fetcher interface {
	Fetch(ctx context.Context, d ocispec.Descriptor) (io.ReadCloser, error)
}

// Snapshot is a snapshot whose manifest and config were read and verified.
type Snapshot struct {
	Descriptor ocispec.Descriptor
	Manifest   ocispec.Manifest
	Config     Config
}

// Open reads and verifies a snapshot's manifest and config.
func Open(ctx context.Context, src Fetcher, d ocispec.Descriptor) (*Snapshot, error) {
	return nil, errdefs.ErrNotImplemented
}

// Index is the layer that says where memory is.
func (s *Snapshot) Index() ocispec.Descriptor { return ocispec.Descriptor{} }

// CRIU is the layer with CRIU's images.
func (s *Snapshot) CRIU() ocispec.Descriptor { return ocispec.Descriptor{} }

// RootFS is the layer with the rootfs difference; false where the snapshot has none.
func (s *Snapshot) RootFS() (ocispec.Descriptor, bool) { return ocispec.Descriptor{}, false }

// Segments are the layers that hold memory, in order.
func (s *Snapshot) Segments() []ocispec.Descriptor { return nil }

// UnpackOptions are the choices of [Snapshot.Unpack]; the zero value is good.
type UnpackOptions struct {
	// Workers is how many goroutines decode. 0: as many as there are cores.
	Workers int
	// Progress is told how many bytes of memory were written, as "unpack".
	Progress Progress
}

// Unpack writes a complete directory of CRIU images to dir, which must be empty or missing.
// Directories get mode 0700, files 0600. On an error nothing is left in dir.
func (s *Snapshot) Unpack(ctx context.Context, src Fetcher, dir string, o UnpackOptions) error {
	return errdefs.ErrNotImplemented
}

// ReadRootFS hands the rootfs difference, an uncompressed tar, to read. It fails, after read returned, if the layer did not
// verify: what read did must then be thrown away. A snapshot without a rootfs difference gives an error of kind NotFound.
func (s *Snapshot) ReadRootFS(ctx context.Context, src Fetcher, read func(io.Reader) error) error {
	return errdefs.ErrNotImplemented
}

// Verify reads every blob of a snapshot and checks every digest, every frame and every reference between the parts.
func Verify(ctx context.Context, src Fetcher, d ocispec.Descriptor, p Progress) error {
	return errdefs.ErrNotImplemented
}
