package archive

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/store"
)

// toDir adds the snapshot to an OCI layout, which it makes where there is none. index.json comes last.
func (e *export) toDir(ctx context.Context) error {
	blobs := filepath.Join(e.l.path, ocispec.ImageBlobsDir, "sha256")
	if err := os.MkdirAll(blobs, 0o700); err != nil {
		return err
	}
	unlock, err := lockDir(ctx, e.l.path)
	if err != nil {
		return err
	}
	defer unlock()
	index, err := e.dirIndex()
	if err != nil {
		return err
	}
	for _, d := range e.blobs {
		if err := e.placeBlob(ctx, filepath.Join(blobs, d.Digest.Encoded()), d); err != nil {
			return err
		}
	}
	if err := syncDir(blobs); err != nil {
		return err
	}
	index.Manifests = slices.DeleteFunc(index.Manifests, func(d ocispec.Descriptor) bool {
		return d.Annotations[ocispec.AnnotationRefName] == e.entry.Annotations[ocispec.AnnotationRefName]
	})
	index.Manifests = append(index.Manifests, e.entry)
	for _, s := range e.signed {
		if !slices.ContainsFunc(index.Manifests, func(d ocispec.Descriptor) bool { return d.Digest == s.Digest }) {
			index.Manifests = append(index.Manifests, s)
		}
	}
	data, err := json.Marshal(index)
	if err != nil {
		return err
	}
	if err := replace(filepath.Join(e.l.path, ocispec.ImageLayoutFile), writeBytes(layoutJSON())); err != nil {
		return err
	}
	if err := replace(filepath.Join(e.l.path, ocispec.ImageIndexFile), writeBytes(data)); err != nil {
		return err
	}
	return syncDir(e.l.path)
}

// dirIndex reads the index of a layout that is there.
func (e *export) dirIndex() (ocispec.Index, error) {
	data, err := os.ReadFile(filepath.Join(e.l.path, ocispec.ImageIndexFile))
	if errors.Is(err, fs.ErrNotExist) {
		return indexOf(), nil
	}
	if err != nil {
		return ocispec.Index{}, err
	}
	i, err := store.ParseIndex(data)
	if err != nil {
		return i, damaged(e.l, fmt.Errorf("index.json: %w", err))
	}
	return i, nil
}

// placeBlob keeps a blob of the right size that is there.
func (e *export) placeBlob(ctx context.Context, path string, d ocispec.Descriptor) error {
	if i, err := os.Lstat(path); err == nil && i.Mode().IsRegular() && i.Size() == d.Size {
		return nil
	}
	return replace(path, func(w io.Writer) error { return e.copyBlob(ctx, w, d) })
}

func writeBytes(data []byte) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	}
}

// replace puts a file (mode 0600) at path once all of it is on the disk.
func replace(path string, write func(io.Writer) error) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".cryo-")
	if err != nil {
		return err
	}
	defer func() {
		f.Close()
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	if err := write(f); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// lockDir keeps two exports to one directory apart. It polls: a blocked flock(2) could not be cancelled.
func lockDir(ctx context.Context, dir string) (func(), error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", dir, err)
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, context.Cause(ctx)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
