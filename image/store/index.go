package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/format"
)

const (
	maxIndex        = 64 << 20 // bytes of index.json
	maxIndexEntries = 1 << 17
)

// AnnotationName is what containerd names an imported image by.
const AnnotationName = "io.containerd.image.name"

// LayoutFile returns the oci-layout of an OCI image layout.
func LayoutFile() []byte {
	return []byte(`{"imageLayoutVersion":"` + ocispec.ImageLayoutVersion + `"}`)
}

// CheckLayout reads the oci-layout of an OCI image layout, and returns an error unless it can be read here.
func CheckLayout(data []byte) error {
	var l ocispec.ImageLayout
	if err := format.SmallJSON.Unmarshal(data, &l); err != nil {
		return err
	}
	if l.Version != ocispec.ImageLayoutVersion {
		return fmt.Errorf("version %.40q, want %q", l.Version, ocispec.ImageLayoutVersion)
	}
	return nil
}

// NewIndex returns the index of an OCI image layout that holds entries.
func NewIndex(entries ...ocispec.Descriptor) ocispec.Index {
	return ocispec.Index{
		Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: ocispec.MediaTypeImageIndex,
		Manifests: append([]ocispec.Descriptor{}, entries...), // never null
	}
}

// ParseIndex reads the index.json of an OCI image layout.
func ParseIndex(data []byte) (ocispec.Index, error) {
	var i ocispec.Index
	if len(data) > maxIndex {
		return i, fmt.Errorf("larger than %d bytes", maxIndex)
	}
	if err := format.LayoutJSON.Unmarshal(data, &i); err != nil {
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

// readIndex needs no lock: index.json is only ever replaced as a whole. Where it is damaged or gone, its backup is read, which is as new unless another program has written
// index.json. Where both are, the index is what [Store.rebuiltFromBlobs] returns.
func (s *Store) readIndex(ctx context.Context) (ocispec.Index, error) {
	i, _, err := s.readOrRebuild(ctx)
	return i, err
}

// readOrRebuild reports whether the index is another than that of index.json.
func (s *Store) readOrRebuild(ctx context.Context) (_ ocispec.Index, other bool, _ error) {
	i, err := s.readIndexFile(filepath.Join(s.Layout(), ocispec.ImageIndexFile))
	if err == nil || !errors.Is(err, ErrCorrupt) {
		return i, false, err
	}
	old, backup := s.readIndexFile(s.indexBackup())
	switch {
	case backup == nil:
		i, err = s.rebuilt(ctx, old)
	case errors.Is(backup, ErrCorrupt):
		i, err = s.rebuiltFromBlobs(ctx)
	default:
		return i, false, backup
	}
	if err != nil {
		return i, false, fmt.Errorf("rebuild the index: %w", err)
	}
	return i, true, nil
}

func (s *Store) readIndexFile(path string) (ocispec.Index, error) {
	data, err := readLimited(path, maxIndex)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EIO) {
		return ocispec.Index{}, damagedIndex(path, err)
	}
	if err != nil && !errors.Is(err, ErrCorrupt) {
		return ocispec.Index{}, fmt.Errorf("read index: %w", mapError(s.root, err))
	}
	var i ocispec.Index
	if err == nil {
		i, err = ParseIndex(data)
	}
	if err != nil {
		return ocispec.Index{}, damagedIndex(path, err)
	}
	return i, nil
}

// writeIndex replaces index.json; the index lock must be held. Its backup comes first, since it names what is there already, or no longer what is to go.
func (s *Store) writeIndex(i ocispec.Index) error {
	data, err := json.Marshal(i)
	if err != nil {
		return fmt.Errorf("encode index: %w", err)
	}
	for _, path := range []string{s.indexBackup(), filepath.Join(s.Layout(), ocispec.ImageIndexFile)} {
		dropAborted(path)
		if err := ReplaceFile(path, Bytes(data)); err != nil {
			return fmt.Errorf("write index: %w", mapError(s.root, err))
		}
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
	i, other, err := s.readOrRebuild(ctx)
	if err != nil {
		return err
	}
	if other {
		if err := s.writeIndex(i); err != nil {
			return err
		}
	}
	return do(i)
}

// CheckWritable reports whether the index can be read and replaced, for an operation that writes it only at its end. It rebuilds a damaged one.
func (s *Store) CheckWritable(ctx context.Context) error {
	return s.withIndex(ctx, func(ocispec.Index) error {
		for _, path := range []string{s.indexBackup(), filepath.Join(s.Layout(), ocispec.ImageIndexFile)} {
			f, err := os.OpenFile(path, os.O_RDWR, 0) // not if it is immutable
			if err == nil {
				f.Close()
			} else if errors.Is(err, fs.ErrNotExist) {
				err = nil // of a store that an earlier version made
			}
			if err == nil {
				err = writable(filepath.Dir(path))
			}
			if err != nil {
				return fmt.Errorf("write the index: %w", mapError(s.root, err))
			}
		}
		return nil
	})
}

// writable returns an error unless a file can be made in dir. The one that it makes has no name, and goes with this process, also where that is killed.
func writable(dir string) error {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EISDIR) { // the file system has no files without a name
		err = unix.Access(dir, unix.W_OK)
	} else if err == nil {
		err = unix.Close(fd)
	}
	if err != nil {
		return &fs.PathError{Op: "write", Path: dir, Err: err}
	}
	return nil
}
