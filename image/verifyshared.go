package image

import (
	"context"
	"runtime"
	"sync/atomic"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"
)

// VerifyShared checks the digests of the segments that a snapshot has of its parent: [Pack] refers to them without reading
// them. The progress, as "verify", is in bytes of blobs.
func VerifyShared(ctx context.Context, src Fetcher, d ocispec.Descriptor, p Progress) error {
	s, err := Open(ctx, src, d)
	if err != nil || s.Config.Parent == nil {
		return err
	}
	shared := s.Segments()[:s.Config.Parent.Segments]
	var done atomic.Int64
	var total int64
	for _, l := range shared {
		total += l.Size
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	for _, l := range shared {
		g.Go(func() error {
			blob, err := openBlob(ctx, src, l.Annotations[ocispec.AnnotationTitle], l)
			if err != nil {
				return err
			}
			defer blob.Close()
			if err := blob.finish(); err != nil {
				return err
			}
			if n := done.Add(l.Size); p != nil {
				p("verify", n, total)
			}
			return nil
		})
	}
	return g.Wait()
}
