package image

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"sync"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

var (
	errShort  = errors.New("it is cut short")
	errLong   = errors.New("it is longer than its descriptor says")
	errDigest = errors.New("its bytes do not have its digest")
)

// blobReader reads a blob that is exactly as long as its descriptor says and, at its end, has the descriptor's digest.
// The error of the last Read is an error of kind DataLoss where that is not so.
type blobReader struct {
	ctx  context.Context
	part string
	desc ocispec.Descriptor
	rc   io.ReadCloser
	hash hash.Hash
	left int64

	mu  sync.Mutex // a decompressor reads ahead in goroutines of its own
	err error      // of a Read, also io.EOF; guarded by mu
}

func openBlob(ctx context.Context, src Fetcher, part string, d ocispec.Descriptor) (*blobReader, error) {
	if !validDigest(d.Digest) || d.Size < 0 {
		return nil, damaged(part, d.Digest, errors.New("its descriptor is not valid"))
	}
	rc, err := src.Fetch(ctx, d)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", part, err)
	}
	return &blobReader{ctx: ctx, part: part, desc: d, rc: rc, hash: sha256.New(), left: d.Size}, nil
}

func (b *blobReader) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return 0, b.err
	}
	var n int
	n, b.err = b.read(p)
	return n, b.err
}

func (b *blobReader) read(p []byte) (int, error) {
	if err := b.ctx.Err(); err != nil {
		return 0, err
	}
	if b.left == 0 {
		return 0, b.end()
	}
	n, err := b.rc.Read(p[:min(int64(len(p)), b.left)])
	b.hash.Write(p[:n])
	b.left -= int64(n)
	switch {
	case err == nil || b.left == 0:
		return n, nil // end says whether more follows
	case err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF):
		return n, b.damaged(errShort)
	default:
		return n, fmt.Errorf("read %s: %w", b.part, err)
	}
}

// end returns an error unless nothing follows and the digest is right.
func (b *blobReader) end() error {
	var one [1]byte
	switch n, err := io.ReadFull(b.rc, one[:]); {
	case n > 0:
		return b.damaged(errLong)
	case err != io.EOF:
		return fmt.Errorf("read %s: %w", b.part, err)
	}
	if digest.NewDigest(digest.SHA256, b.hash) != b.desc.Digest {
		return b.damaged(errDigest)
	}
	return io.EOF
}

// readAt reads bytes at an offset that is not before what was read.
func (b *blobReader) readAt(p []byte, off int64) error {
	_, err := io.CopyN(io.Discard, b, off-(b.desc.Size-b.left))
	if err == nil {
		_, err = io.ReadFull(b, p)
	}
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return b.damaged(errShort)
	}
	return err
}

// finish reads what is left and says whether the blob is sound.
func (b *blobReader) finish() error {
	if _, err := io.Copy(io.Discard, b); err != nil {
		return err
	}
	return nil
}

// failed is the error of a Read other than the end.
func (b *blobReader) failed() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err == io.EOF {
		return nil
	}
	return b.err
}

func (b *blobReader) Close() error { return b.rc.Close() }

func (b *blobReader) damaged(err error) error {
	return damaged(b.part, b.desc.Digest, err)
}

// readBlob reads a whole blob of at most limit bytes.
func readBlob(ctx context.Context, src Fetcher, part string, d ocispec.Descriptor, limit int64) ([]byte, error) {
	if d.Size > limit {
		return nil, damaged(part, d.Digest, fmt.Errorf("it has %d bytes, more than %d", d.Size, limit))
	}
	b, err := openBlob(ctx, src, part, d)
	if err != nil {
		return nil, err
	}
	defer b.Close()
	return io.ReadAll(b)
}

// validDigest reports whether a digest is of the one algorithm the format has.
func validDigest(d digest.Digest) bool {
	return d.Validate() == nil && d.Algorithm() == digest.SHA256
}
