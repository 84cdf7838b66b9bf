package registry

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
	dir, err := os.Open(e.l.path)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := store.Lock(ctx, dir, unix.LOCK_EX); err != nil {
		return err
	}
	index, err := e.dirIndex()
	if err != nil {
		return err
	}
	for _, d := range e.blobs {
		if err := e.placeBlob(ctx, filepath.Join(blobs, d.Digest.Encoded()), d); err != nil {
			return err
		}
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
	if err := store.ReplaceFile(filepath.Join(e.l.path, ocispec.ImageLayoutFile), store.Bytes(store.LayoutFile())); err != nil {
		return err
	}
	return store.ReplaceFile(filepath.Join(e.l.path, ocispec.ImageIndexFile), store.Bytes(data))
}

// dirIndex reads the index of a layout that is there.
func (e *export) dirIndex() (ocispec.Index, error) {
	data, err := os.ReadFile(filepath.Join(e.l.path, ocispec.ImageIndexFile))
	if errors.Is(err, fs.ErrNotExist) {
		return store.NewIndex(), nil
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
	return store.ReplaceFile(path, func(w io.Writer) error { return store.Copy(ctx, w, e.src, d) })
}
