package image

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image/format"
)

// Parent is a snapshot of earlier memory: a new snapshot lists segments of it among its own, and stores only those frames that
// are not in them. A frame is found by the digest of its pages, wherever it was: CRIU numbers shared memory anew when it has
// been restored.
type Parent struct {
	digest   digest.Digest
	segments []ocispec.Descriptor
	frames   []format.Frame // in segments that are there, without runs; by digest, segment and offset
}

// OpenParent reads what is needed of the snapshot d. pageSize is that of the dumped processes, in bytes. Segments that src does
// not have are not referred to; errors are those of [Open], or of kind FailedPrecondition where the page size is another.
func OpenParent(ctx context.Context, src BlobStore, d ocispec.Descriptor, pageSize int64) (*Parent, error) {
	s, err := Open(ctx, src, d)
	if err != nil {
		return nil, err
	}
	if n := int64(s.Config.Host.PageSize); n != pageSize {
		return nil, fmt.Errorf("take %s for the parent: its pages have %d bytes, not %d: %w", d.Digest, n, pageSize, errdefs.ErrFailedPrecondition)
	}
	x, err := s.ReadIndex(ctx, src)
	if err != nil {
		return nil, err
	}
	p := &Parent{digest: d.Digest, segments: s.Segments()}
	there := make([]bool, len(p.segments))
	for i, l := range p.segments {
		if there[i], err = src.Exists(ctx, l); err != nil {
			return nil, err
		}
	}
	p.frames = slices.DeleteFunc(x.Frames, func(f format.Frame) bool { return !there[f.Segment] })
	for i := range p.frames {
		p.frames[i].Runs = nil
	}
	slices.SortFunc(p.frames, func(a, b format.Frame) int {
		return cmp.Or(bytes.Compare(a.Digest[:], b.Digest[:]), cmp.Compare(a.Segment, b.Segment), cmp.Compare(a.Offset, b.Offset))
	})
	return p, nil
}

// find returns the number of the first frame that holds the same pages; -1 if there is none. A parent that is nil has none.
func (p *Parent) find(f *format.Frame) int {
	if p == nil {
		return -1
	}
	at, found := slices.BinarySearchFunc(p.frames, f, func(a format.Frame, f *format.Frame) int { return bytes.Compare(a.Digest[:], f.Digest[:]) })
	if !found || !p.holds(at, f) {
		return -1
	}
	return at
}

// holds reports whether the frame of this number holds the same pages.
func (p *Parent) holds(at int, f *format.Frame) bool {
	return at < len(p.frames) && p.frames[at].Digest == f.Digest && p.frames[at].Raw == f.Raw
}
