package image

import (
	"archive/tar"
	"cmp"
	"context"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync/atomic"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/cryo-project/cryo/image/format"
)

// Verify reads every blob of a snapshot and checks every digest, every frame and every reference between the parts. Its errors
// are those of [Open] and [Snapshot.Unpack]. The progress, as "verify", is in bytes of blobs.
func Verify(ctx context.Context, src Fetcher, d ocispec.Descriptor, p Progress) error {
	s, x, err := openIndex(ctx, src, d)
	if err != nil {
		return err
	}
	v := verification{src: src, progress: p}
	for _, l := range s.Manifest.Layers {
		v.total += l.Size
	}
	v.advance(s.Index().Size + s.Config.Memory.Unused)
	if err := s.readChecked(ctx, src, newPagemapCheck(x), nil); err != nil {
		return err
	}
	v.advance(s.CRIU().Size)
	if l, ok := s.RootFS(); ok {
		if err := s.verifyRootFS(ctx, src); err != nil {
			return err
		}
		v.advance(l.Size)
	}
	return v.memory(ctx, s.Segments(), x.Frames)
}

// VerifySmall reads what is small of a snapshot, which is all but its memory and its files, and checks that as [Verify] does.
func VerifySmall(ctx context.Context, src Fetcher, d ocispec.Descriptor) error {
	s, x, err := openIndex(ctx, src, d)
	if err != nil {
		return err
	}
	return s.readChecked(ctx, src, newPagemapCheck(x), nil)
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
	n, _ := slices.BinarySearchFunc(x.Frames, s.shared(), func(f format.Frame, segment int) int { return cmp.Compare(f.Segment, segment) })
	v := verification{src: src, progress: p}
	for i := range n {
		v.total += x.Frames[i].Stored
	}
	return v.memory(ctx, s.Segments()[:s.shared()], x.Frames[:n])
}

// shared is how many of the first segments are the parent's too. [Pack] refers to frames in them by what the parent's index says of
// them, without reading them: no check of a frame of these segments was made of its bytes, and its digest has to be compared.
func (s *Snapshot) shared() int {
	if s.Config.Parent == nil {
		return 0
	}
	return s.Config.Parent.Segments
}

// verifyRootFS returns an error unless the rootfs difference is a tar; what its entries say is checked when they are applied.
func (s *Snapshot) verifyRootFS(ctx context.Context, src Fetcher) error {
	return s.ReadRootFS(ctx, src, func(r io.Reader) error {
		for tr := tar.NewReader(r); ; {
			if _, err := tr.Next(); err == io.EOF {
				return nil
			} else if err != nil {
				d, _ := s.RootFS()
				return damaged(titleRootFS, d.Digest, fmt.Errorf("it is not a tar: %w", err))
			}
		}
	})
}

// verification is how far blobs are read.
type verification struct {
	src      Fetcher
	progress Progress
	done     atomic.Int64
	total    int64
}

func (v *verification) advance(n int64) {
	if n = v.done.Add(n); v.progress != nil {
		v.progress("verify", n, v.total)
	}
}

// memory reads all of segments, and verifies them and each frame in them. frames are all of theirs.
func (v *verification) memory(ctx context.Context, segments []ocispec.Descriptor, frames []format.Frame) error {
	workers := runtime.GOMAXPROCS(0)
	decoders := make(chan *format.Decoder, workers)
	for range workers {
		dec, err := format.NewDecoder()
		if err != nil {
			return err
		}
		defer dec.Close()
		decoders <- dec
	}
	reads, ctx := errgroup.WithContext(ctx)
	reads.SetLimit(workers)
	decodes, ctx := errgroup.WithContext(ctx) // reading ends when a frame does not verify
	decodes.SetLimit(workers)
	for n, d := range segments {
		last, _ := slices.BinarySearchFunc(frames, n+1, func(f format.Frame, segment int) int { return cmp.Compare(f.Segment, segment) })
		own := frames[:last]
		frames = frames[last:]
		reads.Go(func() error {
			blob, err := openBlob(ctx, v.src, d.Annotations[ocispec.AnnotationTitle], d)
			if err != nil {
				return err
			}
			defer blob.Close()
			for i := range own {
				f, buf := &own[i], format.LendBuffer()
				if err := blob.readAt(buf[:f.Stored], f.Offset); err != nil {
					format.ReturnBuffer(buf)
					return err
				}
				decodes.Go(func() error {
					defer format.ReturnBuffer(buf)
					dec := <-decoders
					defer func() { decoders <- dec }()
					_, err := dec.Decode(f, buf[:f.Stored])
					v.advance(f.Stored)
					return err
				})
			}
			return blob.finish()
		})
	}
	err := reads.Wait()
	return cmp.Or(decodes.Wait(), err)
}
