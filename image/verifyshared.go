package image

import (
	"cmp"
	"context"
	"slices"
	"sync/atomic"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image/index"
)

// shared is how many of the first segments are the parent's too. [Pack] refers to frames in them by what the parent's index says of
// them, without reading them: no check of a frame of these segments was made of its bytes, and its digest has to be compared.
func (s *Snapshot) shared() int {
	if s.Config.Parent == nil {
		return 0
	}
	return s.Config.Parent.Segments
}

// VerifyShared checks the digests of the segments that a snapshot has of its parent, and of all its frames in them. The progress, as
// "verify", is in bytes of frames.
func VerifyShared(ctx context.Context, src Fetcher, d ocispec.Descriptor, p Progress) error {
	s, err := Open(ctx, src, d)
	if err != nil || s.Config.Parent == nil {
		return err
	}
	x, err := s.ReadIndex(ctx, src)
	if err != nil {
		return err
	}
	n, _ := slices.BinarySearchFunc(x.Frames, s.shared(), func(f index.Frame, segment int) int { return cmp.Compare(f.Segment, segment) })
	frames := x.Frames[:n]
	var done atomic.Int64
	var total int64
	for i := range frames {
		total += frames[i].Stored
	}
	r := segmentReader{src: src, sink: func(f *index.Frame) {
		if n := done.Add(f.Stored); p != nil {
			p("verify", n, total)
		}
	}}
	return r.read(ctx, s.Segments()[:s.shared()], frames)
}
