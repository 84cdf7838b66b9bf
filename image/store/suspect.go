package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/format"
)

// Suspect notes that some blob of a snapshot may be damaged. Each that the store has is read and verified before it is read by others or counts as there again.
// One that is damaged does not count as there: a pull fetches it once more, and puts it in the place of the damaged one.
func (s *Store) Suspect(ctx context.Context, manifest ocispec.Descriptor) error {
	blobs := []ocispec.Descriptor{manifest}
	if data, err := ReadAll(ctx, s, manifest, MaxManifest); err == nil {
		needed, _, err := successors(manifest, data)
		if err != nil {
			return err
		}
		blobs = append(blobs, needed...)
	}
	return s.SuspectBlobs(blobs)
}

// Damaged returns err. If err says that something of a snapshot is damaged, the snapshot is suspected first, and an error of that is joined.
func (s *Store) Damaged(ctx context.Context, manifest ocispec.Descriptor, err error) error {
	if !errdefs.IsDataLoss(err) {
		return err
	}
	noted := s.Suspect(ctx, manifest)
	if errors.Is(noted, unix.EROFS) { // nothing can be put in its place either
		noted = nil
	}
	return errors.Join(err, noted)
}

// SuspectBlobs is [Store.Suspect] for blobs.
func (s *Store) SuspectBlobs(blobs []ocispec.Descriptor) error {
	for _, d := range blobs {
		if err := checkDescriptor(d); err != nil {
			return Corrupt("descriptor", err)
		}
		if !exists(s.blobPath(d.Digest)) {
			continue
		}
		f, err := os.OpenFile(s.suspectPath(d.Digest), os.O_WRONLY|os.O_CREATE, 0o600)
		if err == nil {
			err = f.Close()
		}
		if err != nil {
			return fmt.Errorf("note that blob %s may be damaged: %w", d.Digest, mapError(s.root, err))
		}
	}
	return nil
}

// Suspects reports whether some of the blobs may be damaged.
func (s *Store) Suspects(blobs []ocispec.Descriptor) bool {
	for _, d := range blobs {
		if checkDescriptor(d) == nil && exists(s.suspectPath(d.Digest)) {
			return true
		}
	}
	return false
}

// suspectPath is an empty file that stands while a blob may be damaged.
func (s *Store) suspectPath(d digest.Digest) string { return filepath.Join(s.suspect(), d.Encoded()) }

// sound reports whether a blob may be taken for what it should be: it is not suspected, or reading all of it shows that it is whole, which ends the suspicion.
func (s *Store) sound(ctx context.Context, d ocispec.Descriptor) (bool, error) {
	if !exists(s.suspectPath(d.Digest)) {
		return true, nil
	}
	whole, err := s.whole(ctx, d)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil // there is none, as the opener finds
	}
	if err != nil {
		return false, fmt.Errorf("verify blob %s: %w", d.Digest, mapError(s.root, err))
	}
	if whole {
		if err = s.trust(d.Digest); errors.Is(err, unix.EROFS) {
			err = nil
		}
	}
	return whole, err
}

// trust ends a suspicion.
func (s *Store) trust(d digest.Digest) error {
	if err := os.Remove(s.suspectPath(d)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("note that blob %s is whole: %w", d, mapError(s.root, err))
	}
	return nil
}

// whole reads a blob and tells whether it is what it should be. Where the disk cannot read it any more, it is not.
func (s *Store) whole(ctx context.Context, d ocispec.Descriptor) (bool, error) {
	f, err := os.Open(s.blobPath(d.Digest))
	if err != nil {
		return false, err
	}
	file := format.NewDirectFile(f)
	defer file.Close()
	all := newSum()
	switch err := all.add(ctx, file); {
	case errors.Is(err, unix.EIO):
		return false, nil
	case err != nil:
		return false, err
	}
	return all.of(d), nil
}
