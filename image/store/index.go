package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

const (
	maxIndex        = 64 << 20 // bytes of index.json
	maxIndexEntries = 1 << 17
)

// AnnotationName is what containerd names an imported image by.
const AnnotationName = "io.containerd.image.name"

func emptyIndex() ocispec.Index {
	return ocispec.Index{
		Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: ocispec.MediaTypeImageIndex,
		Manifests: []ocispec.Descriptor{},
	}
}

// ParseIndex reads the index.json of an OCI image layout.
func ParseIndex(data []byte) (ocispec.Index, error) {
	var i ocispec.Index
	if len(data) > maxIndex {
		return i, fmt.Errorf("larger than %d bytes", maxIndex)
	}
	if err := unmarshal(data, &i); err != nil {
		return i, err
	}
	if i.SchemaVersion != 2 {
		return i, fmt.Errorf("schema version %d, want 2", i.SchemaVersion)
	}
	if len(i.Manifests) > maxIndexEntries {
		return i, fmt.Errorf("%d entries, at most %d are allowed", len(i.Manifests), maxIndexEntries)
	}
	for _, d := range i.Manifests {
		if err := checkDescriptor(d); err != nil {
			return i, err
		}
	}
	return i, nil
}

// readIndex needs no lock: index.json is only ever replaced as a whole.
func (s *Store) readIndex() (ocispec.Index, error) {
	path := filepath.Join(s.Layout(), ocispec.ImageIndexFile)
	data, err := readLimited(path, maxIndex)
	if errors.Is(err, fs.ErrNotExist) {
		return ocispec.Index{}, &CorruptError{What: path, Err: err}
	}
	if err != nil {
		return ocispec.Index{}, fmt.Errorf("read index: %w", mapError(s.root, err))
	}
	i, err := ParseIndex(data)
	if err != nil {
		return ocispec.Index{}, &CorruptError{What: path, Err: err}
	}
	return i, nil
}

// writeIndex replaces index.json; the index lock must be held.
func (s *Store) writeIndex(i ocispec.Index) error {
	data, err := json.Marshal(i)
	if err != nil {
		return fmt.Errorf("encode index: %w", err)
	}
	path := filepath.Join(s.Layout(), ocispec.ImageIndexFile)
	dropAborted(path)
	if err := ReplaceFile(path, Bytes(data)); err != nil {
		return fmt.Errorf("write index: %w", mapError(s.root, err))
	}
	return nil
}

// update changes index.json under the lock. change says whether there is something to write.
func (s *Store) update(ctx context.Context, change func(*ocispec.Index) (bool, error)) error {
	return s.withIndex(ctx, func(i ocispec.Index) error {
		write, err := change(&i)
		if err != nil || !write {
			return err
		}
		return s.writeIndex(i)
	})
}

// withIndex reads index.json, and calls do under the lock.
func (s *Store) withIndex(ctx context.Context, do func(ocispec.Index) error) error {
	unlock, err := lock(ctx, s.indexLock())
	if err != nil {
		return mapError(s.root, err)
	}
	defer unlock()
	i, err := s.readIndex()
	if err != nil {
		return err
	}
	return do(i)
}
