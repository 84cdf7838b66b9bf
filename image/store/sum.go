package store

import (
	"context"
	"crypto/sha256"
	"errors"
	"hash"
	"io"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image/format"
)

// sum is the digest of the bytes written so far.
type sum struct {
	h hash.Hash
	n int64 // bytes
}

func newSum() sum { return sum{h: sha256.New()} }

// Write implements [io.Writer].
func (s *sum) Write(p []byte) (int, error) {
	s.n += int64(len(p))
	return s.h.Write(p)
}

// add reads the rest of a file, from n on.
func (s *sum) add(ctx context.Context, f *format.DirectFile) error {
	buf := format.LendBuffer()
	defer format.ReturnBuffer(buf)
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		n, err := f.ReadAt(buf, s.n)
		_, _ = s.Write(buf[:n])
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// descriptor describes a blob of these bytes.
func (s *sum) descriptor(mediaType string) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: mediaType, Digest: digest.NewDigest(digest.SHA256, s.h), Size: s.n}
}

// of reports whether the bytes are the blob d.
func (s *sum) of(d ocispec.Descriptor) bool {
	return s.n == d.Size && s.descriptor("").Digest == d.Digest
}
