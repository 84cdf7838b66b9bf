package image

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
	"sync/atomic"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image/index"
)

// Verify reads every blob of a snapshot and checks every digest, every frame and every reference between the parts. Its errors
// are those of [Open] and [Snapshot.Unpack]. The progress, as "verify", is in bytes of blobs.
func Verify(ctx context.Context, src Fetcher, d ocispec.Descriptor, p Progress) error {
	s, err := Open(ctx, src, d)
	if err != nil {
		return err
	}
	var done atomic.Int64
	var total int64
	for _, l := range s.Manifest.Layers {
		total += l.Size
	}
	advance := func(n int64) {
		if p != nil {
			p("verify", done.Add(n), total)
		}
	}
	x, err := s.ReadIndex(ctx, src)
	if err != nil {
		return err
	}
	advance(s.Index().Size + s.Config.Memory.Unused)
	if err := s.verifyCRIU(ctx, src, x); err != nil {
		return err
	}
	advance(s.CRIU().Size)
	if l, ok := s.RootFS(); ok {
		if err := s.verifyRootFS(ctx, src); err != nil {
			return err
		}
		advance(l.Size)
	}
	r := segmentReader{src: src, sink: func(f *index.Frame) { advance(f.Stored) }}
	return r.read(ctx, s.Segments(), x.Frames)
}

// VerifySmall reads what is small of a snapshot, which is all but its memory and its files, and checks that as [Verify] does.
func VerifySmall(ctx context.Context, src Fetcher, d ocispec.Descriptor) error {
	s, err := Open(ctx, src, d)
	if err != nil {
		return err
	}
	x, err := s.ReadIndex(ctx, src)
	if err != nil {
		return err
	}
	return s.verifyCRIU(ctx, src, x)
}

func (s *Snapshot) verifyCRIU(ctx context.Context, src Fetcher, x *index.Index) error {
	check := newPagemapCheck(x)
	damaged := func(err error) error { return &DamagedError{Part: titleCRIU, Digest: s.CRIU().Digest, Err: err} }
	err := readLayer(ctx, src, s.CRIU(), maxContents(s.CRIU().Size), func(r io.Reader) error {
		return readCRIU(r, damaged, func(name string, r io.Reader) error { return check.file(name, r) })
	})
	if err != nil {
		return err
	}
	if err := check.finish(); err != nil {
		return damaged(err)
	}
	return nil
}

// verifyRootFS says whether the rootfs difference is a tar; what its entries say is checked when they are applied.
func (s *Snapshot) verifyRootFS(ctx context.Context, src Fetcher) error {
	return s.ReadRootFS(ctx, src, func(r io.Reader) error {
		for tr := tar.NewReader(r); ; {
			if _, err := tr.Next(); err == io.EOF {
				return nil
			} else if err != nil {
				d, _ := s.RootFS()
				return &DamagedError{Part: titleRootFS, Digest: d.Digest, Err: fmt.Errorf("it is not a tar: %w", err)}
			}
		}
	})
}
