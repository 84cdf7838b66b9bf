package store

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/direct"
	"github.com/cryo-project/cryo/image/segment"
)

func (s *Store) blobPath(d digest.Digest) string { return filepath.Join(s.blobs(), d.Encoded()) }

// Exists reports whether the store has the blob in the size that the descriptor names, and has not noted it as damaged.
func (s *Store) Exists(ctx context.Context, d ocispec.Descriptor) (bool, error) {
	if err := checkDescriptor(d); err != nil {
		return false, &CorruptError{What: "descriptor", Err: err}
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

// Fetch opens a blob; the reader is a [segment.Verified] where only this host's root can have written the blob since it came into the
// store, verified; else a [*direct.Reader]. Here it is not verified beyond its size. Errors are [*MissingError] and [*CorruptError].
func (s *Store) Fetch(ctx context.Context, d ocispec.Descriptor) (io.ReadCloser, error) {
	if err := checkDescriptor(d); err != nil {
		return nil, &CorruptError{What: "descriptor", Err: err}
	}
	if ok, err := s.sound(ctx, d); err != nil || !ok {
		return nil, cmp.Or[error](err, &CorruptError{What: "blob " + d.Digest.String(), Err: errDigest})
	}
	f, err := os.Open(s.blobPath(d.Digest))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &MissingError{Digest: d.Digest}
	}
	if err != nil {
		return nil, fmt.Errorf("open blob %s: %w", d.Digest, mapError(s.root, err))
	}
	return s.opened(f, d)
}

// Passed is Fetch of a blob that f is, by the word of another process of this host that has verified all of it and may still have to place it. f is closed with
// what it gives, or with an error.
func (s *Store) Passed(d ocispec.Descriptor, f *os.File) (io.ReadCloser, error) {
	if err := checkDescriptor(d); err != nil {
		f.Close()
		return nil, &CorruptError{What: "descriptor", Err: err}
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
		return nil, &CorruptError{What: "blob " + d.Digest.String(), Err: fmt.Errorf("it has %d bytes, not %d", i.Size(), d.Size)}
	}
	if local(f) && s.keeps(i) {
		return segment.NewVerified(direct.NewReader(f)), nil
	}
	return direct.NewReader(f), nil
}

// Push stores a blob after verifying it; a blob that is there already is kept and r is left unread.
func (s *Store) Push(ctx context.Context, d ocispec.Descriptor, r io.Reader) error {
	if ok, err := s.Exists(ctx, d); err != nil || ok {
		return err
	}
	w, err := s.create1()
	if err != nil {
		return err
	}
	defer w.Close()
	n, err := io.Copy(w, io.LimitReader(contextReader{ctx, r}, d.Size+1))
	if err == nil {
		err = w.w.Flush()
	}
	if err != nil {
		return fmt.Errorf("store blob %s: %w", d.Digest, mapError(s.root, err))
	}
	if n != d.Size {
		return &CorruptError{What: "blob " + d.Digest.String(), Err: fmt.Errorf("not the %d bytes it should have", d.Size)}
	}
	if w.digest() != d.Digest {
		return &CorruptError{What: "blob " + d.Digest.String(), Err: errDigest}
	}
	_, err = w.Commit(ctx, d.MediaType)
	return err
}

// Create starts a blob of unknown digest and size.
func (s *Store) Create(context.Context) (image.BlobWriter, error) { return s.create1() }

func (s *Store) create1() (*writer, error) {
	f, err := createTemp(s.ingest(), "blob-")
	if err != nil {
		return nil, fmt.Errorf("create blob: %w", mapError(s.root, err))
	}
	w := &writer{s: s, f: f, file: direct.New(f), h: sha256.New()}
	w.w = direct.NewWriter(w.file, w.h)
	return w, nil
}

// writer is a blob in ingest.
type writer struct {
	s    *Store
	f    *os.File // nil: committed or closed
	file *direct.File
	w    *direct.Writer
	h    hash.Hash
	size int64
}

func (w *writer) digest() digest.Digest { return digest.NewDigest(digest.SHA256, w.h) }

// Write implements [io.Writer].
func (w *writer) Write(p []byte) (int, error) {
	if w.f == nil {
		return 0, fs.ErrClosed
	}
	n, err := w.w.Write(p)
	w.size += int64(n)
	if err != nil {
		return n, fmt.Errorf("write blob: %w", mapError(w.s.root, err))
	}
	return n, nil
}

// Commit implements [image.BlobWriter].
func (w *writer) Commit(ctx context.Context, mediaType string) (ocispec.Descriptor, error) {
	if w.f == nil {
		return ocispec.Descriptor{}, fs.ErrClosed
	}
	defer w.Close()
	if err := w.w.Flush(); err != nil {
		return ocispec.Descriptor{}, fmt.Errorf("write blob: %w", mapError(w.s.root, err))
	}
	d := ocispec.Descriptor{MediaType: mediaType, Digest: w.digest(), Size: w.size}
	if err := w.s.place(ctx, w.f, d); err != nil {
		return ocispec.Descriptor{}, err
	}
	return d, nil
}

// Close implements [image.BlobWriter].
func (w *writer) Close() error {
	if w.f == nil {
		return nil
	}
	f := w.f
	w.f = nil
	w.w.Stop()
	if Still(f, f.Name()) {
		os.Remove(f.Name())
	}
	return w.file.Close()
}

// place makes the complete, verified file f the blob d. Where the blob is there already f stays where it is.
func (s *Store) place(ctx context.Context, f *os.File, d ocispec.Descriptor) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	ok, err := s.Exists(ctx, d)
	if err != nil {
		return err
	}
	if !ok {
		if err := f.Sync(); err != nil {
			return fmt.Errorf("sync blob %s: %w", d.Digest, mapError(s.root, err))
		}
		if err := os.Rename(f.Name(), s.blobPath(d.Digest)); err != nil {
			return fmt.Errorf("store blob %s: %w", d.Digest, mapError(s.root, err))
		}
		return s.trust(d.Digest)
	}
	return nil // the directory is synced before a name needs the blob
}

// Copy copies a blob from src, such as a store, and verifies it: where it is damaged the error is a [*CorruptError], and what was written is of no use.
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
		return &CorruptError{What: "blob " + d.Digest.String(), Err: errDigest}
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
