package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"sync/atomic"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/format"
)

// Cache reads blobs, so that the kernel has them in its page cache: the next reader does not wait for the disk. Nothing is verified. The progress, as "read", is in bytes.
func (s *Store) Cache(ctx context.Context, blobs []ocispec.Descriptor, p image.Progress) error {
	var total int64
	for _, d := range blobs {
		total += d.Size
	}
	var done atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	for _, d := range blobs {
		g.Go(func() error {
			f, err := os.Open(s.blobPath(d.Digest))
			if errors.Is(err, fs.ErrNotExist) {
				return missing(d.Digest, "")
			}
			if err != nil {
				return fmt.Errorf("open blob %s: %w", d.Digest, mapError(s.root, err))
			}
			defer f.Close()
			buf := format.LendBuffer()
			defer format.ReturnBuffer(buf)
			for ctx.Err() == nil {
				n, err := f.Read(buf)
				if p != nil {
					p("read", done.Add(int64(n)), total)
				}
				if err == io.EOF {
					return nil
				}
				if err != nil {
					return fmt.Errorf("read blob %s: %w", d.Digest, mapError(s.root, err))
				}
			}
			return context.Cause(ctx)
		})
	}
	return g.Wait()
}
