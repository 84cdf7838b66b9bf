package warm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/store"
)

var _ image.Decoded = (*Entry)(nil)

// Entry is a prewarmed snapshot in use: it is not removed until Close. What is open of it by then stays readable.
type Entry struct {
	path string
	lock *os.File
}

// Find gives the snapshot with this manifest if it is prewarmed, and nil otherwise. That counts as use.
func (d *Dir) Find(ctx context.Context, dg digest.Digest) (*Entry, error) {
	if is, err := d.mounted(); err != nil || !is || dg.Validate() != nil {
		return nil, err
	}
	e := &Entry{path: d.entry(dg)}
	path := filepath.Join(e.path, lockName)
	f, err := openLocked(ctx, path, os.O_RDWR, unix.LOCK_SH)
	if err != nil || f == nil {
		return nil, err
	}
	now := time.Now()
	if err := os.Chtimes(path, now, now); err != nil {
		f.Close()
		return nil, fmt.Errorf("open a prewarmed snapshot: %w", err)
	}
	e.lock = f
	return e, nil
}

// openLocked opens a file that is there and takes its flock; nil: it is not, or not any more.
func openLocked(ctx context.Context, path string, flag, how int) (*os.File, error) {
	f, err := os.OpenFile(path, flag, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		err = store.Lock(ctx, f, how)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("open a prewarmed snapshot: %w", err)
	}
	if store.Still(f, path) {
		return f, nil
	}
	f.Close()
	return nil, nil
}

// Fetch implements [image.Fetcher].
func (e *Entry) Fetch(_ context.Context, d ocispec.Descriptor) (io.ReadCloser, error) {
	if err := d.Digest.Validate(); err != nil {
		return nil, fmt.Errorf("open blob %.100q: %w: %w", d.Digest, err, errdefs.ErrDataLoss)
	}
	f, err := os.Open(filepath.Join(e.path, blobsName, d.Digest.Encoded()))
	if err != nil {
		return nil, fmt.Errorf("open blob of a prewarmed snapshot: %w", err)
	}
	return f, nil
}

// Memory implements [image.Decoded].
func (e *Entry) Memory(ctx context.Context) (*os.File, error) {
	path := filepath.Join(e.path, memoryName)
	f, err := openLocked(ctx, path, os.O_RDONLY, unix.LOCK_SH)
	if err == nil && f == nil {
		err = fmt.Errorf("open %s: %w", path, fs.ErrNotExist)
	}
	return f, err
}

// Close lets go of it.
func (e *Entry) Close() error { return e.lock.Close() }
