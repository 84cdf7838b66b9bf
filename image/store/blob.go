package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/format"
)

func (s *Store) blobPath(d digest.Digest) string { return filepath.Join(s.blobs(), d.Encoded()) }

// Exists reports whether the store has the blob in the size that the descriptor names, and has not noted it as damaged.
func (s *Store) Exists(ctx context.Context, d ocispec.Descriptor) (bool, error) {
	if err := checkDescriptor(d); err != nil {
		return false, Corrupt("descriptor", err)
	}
	i, err := os.Lstat(s.blobPath(d.Digest))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for blob %s: %w", d.Digest, mapError(s.root, err))
	}
	if !i.Mode().IsRegular() || i.Size() != d.Size {
		return false, nil
	}
	return s.sound(ctx, d)
}

// Fetch opens a blob; the reader is a [format.Verified] where only this host's root can have written the blob since it came into the
// store, verified; else a [*format.DirectReader]. Here it is not verified beyond its size. Errors are [ErrMissing] and [ErrCorrupt].
func (s *Store) Fetch(ctx context.Context, d ocispec.Descriptor) (io.ReadCloser, error) {
	if err := checkDescriptor(d); err != nil {
		return nil, Corrupt("descriptor", err)
	}
	if ok, err := s.sound(ctx, d); err != nil || !ok {
		return nil, cmp.Or[error](err, Corrupt("blob "+d.Digest.String(), errDigest))
	}
	f, err := os.Open(s.blobPath(d.Digest))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, missing(d.Digest, "")
	}
	if err != nil {
		return nil, fmt.Errorf("open blob %s: %w", d.Digest, mapError(s.root, err))
	}
	return s.opened(f, d)
}

// OpenVerified is Fetch of the blob that f is, all of which a process of this host has verified. The blob need not be placed yet. f is closed with the reader, or
// with an error.
func (s *Store) OpenVerified(d ocispec.Descriptor, f *os.File) (io.ReadCloser, error) {
	if err := checkDescriptor(d); err != nil {
		f.Close()
		return nil, Corrupt("descriptor", err)
	}
	return s.opened(f, d)
}

// opened returns what reads the blob that f is.
func (s *Store) opened(f *os.File, d ocispec.Descriptor) (io.ReadCloser, error) {
	i, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("open blob %s: %w", d.Digest, err)
	}
	if i.Size() != d.Size {
		f.Close()
		return nil, Corrupt("blob "+d.Digest.String(), fmt.Errorf("it has %d bytes, not %d", i.Size(), d.Size))
	}
	if local(f) && s.keeps(i) {
		return format.NewVerified(format.NewDirectReader(f)), nil
	}
	return format.NewDirectReader(f), nil
}

// Push stores a blob after verifying it; a blob that is there already is kept and r is left unread.
func (s *Store) Push(ctx context.Context, d ocispec.Descriptor, r io.Reader) error {
	if ok, err := s.Exists(ctx, d); err != nil || ok {
		return err
	}
	i, err := s.create1(d)
	if err != nil {
		return err
	}
	defer i.Close()
	if _, err := io.Copy(i, io.LimitReader(contextReader{ctx, r}, d.Size+1)); err != nil {
		return fmt.Errorf("store blob %s: %w", d.Digest, mapError(s.root, err))
	}
	if err := i.Verify(ctx); err != nil {
		return err
	}
	_, err = i.Commit(ctx, d.MediaType)
	return err
}

// Copy copies a blob from src, such as a store, and verifies it: where it is damaged the error is a [ErrCorrupt], and what was written is of no use.
func Copy(ctx context.Context, w io.Writer, src image.Fetcher, d ocispec.Descriptor) error {
	r, err := src.Fetch(ctx, d)
	if err != nil {
		return err
	}
	defer r.Close()
	v := d.Digest.Verifier()
	n, err := io.Copy(io.MultiWriter(w, v), io.LimitReader(contextReader{ctx, r}, d.Size+1))
	if err != nil {
		return fmt.Errorf("copy blob %s: %w", d.Digest, err)
	}
	if n != d.Size || !v.Verified() {
		return Corrupt("blob "+d.Digest.String(), errDigest)
	}
	return nil
}

// contextReader ends with the context.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (r contextReader) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.r.Read(p)
}
