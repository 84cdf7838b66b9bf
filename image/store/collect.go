package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/signature"
)

// Remove removes a reference and then every blob that no reference needs any more; freed is their size in bytes. While any
// operation runs only the reference goes (freed is 0) and the blobs go with the end of the last operation.
func (s *Store) Remove(ctx context.Context, ref string) (freed int64, err error) {
	if err := s.Untag(ctx, ref); err != nil {
		return 0, fmt.Errorf("remove %s: %w", ref, err)
	}
	// First, so that a collection is made up for also where this process ends here.
	if err := s.postpone(); err != nil {
		return 0, fmt.Errorf("remove %s: %w", ref, err)
	}
	freed, err = s.collect(ctx)
	if err != nil {
		return freed, fmt.Errorf("remove blobs of %s: %w", ref, err)
	}
	return freed, nil
}

// postpone notes that there may be blobs to collect.
func (s *Store) postpone() error {
	f, err := os.OpenFile(s.pending(), os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return mapError(s.root, err)
	}
	return f.Close()
}

// collect removes the blobs that no reference needs, unless an operation runs.
func (s *Store) collect(ctx context.Context) (freed int64, err error) {
	ops, err := os.OpenFile(s.opsLock(), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return 0, mapError(s.root, err)
	}
	defer ops.Close()
	if ok, err := TryLock(ops, unix.LOCK_EX); err != nil || !ok {
		return 0, err
	}
	err = s.withIndex(ctx, func(i ocispec.Index) error {
		live, err := s.mark(ctx, i)
		if err != nil {
			return err
		}
		kept := slices.DeleteFunc(slices.Clone(i.Manifests), func(d ocispec.Descriptor) bool { return attached(d) && !live[d.Digest] })
		if len(kept) < len(i.Manifests) {
			i.Manifests = kept
			if err := s.writeIndex(i); err != nil { // before the blobs: it never names what is gone
				return err
			}
		}
		if freed, err = s.sweepBlobs(ctx, live); err != nil {
			return err
		}
		if err := os.Remove(s.pending()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return mapError(s.root, err)
		}
		return nil
	})
	return freed, err
}

// mark finds all blobs that a reference needs, and the signatures of what it finds. A manifest that cannot be read stops the collection: what
// it needs is not known. One that is gone needs nothing.
func (s *Store) mark(ctx context.Context, i ocispec.Index) (map[digest.Digest]bool, error) {
	live := make(map[digest.Digest]bool)
	named, signatures := []ocispec.Descriptor{}, []ocispec.Descriptor{}
	for _, d := range i.Manifests {
		if attached(d) {
			signatures = append(signatures, d)
		} else {
			named = append(named, d)
		}
	}
	if err := s.reach(ctx, named, live); err != nil {
		return nil, err
	}
	for _, d := range signatures {
		data, err := ReadAll(ctx, s, d, signature.MaxSize)
		if errdefs.IsDataLoss(err) || errdefs.IsNotFound(err) {
			continue // it is good for nothing
		}
		if err == nil && live[signature.Subject(data)] {
			err = s.reach(ctx, []ocispec.Descriptor{d}, live)
		}
		if err != nil {
			return nil, err
		}
	}
	return live, nil
}

// reach adds what descriptors are of, and all that it needs.
func (s *Store) reach(ctx context.Context, todo []ocispec.Descriptor, live map[digest.Digest]bool) error {
	for len(todo) > 0 {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		d := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if live[d.Digest] {
			continue
		}
		live[d.Digest] = true
		if !IsManifest(d.MediaType) {
			continue
		}
		next, err := s.successors(ctx, d)
		if err != nil {
			return err
		}
		todo = append(todo, next...)
	}
	return nil
}

func (s *Store) successors(ctx context.Context, d ocispec.Descriptor) ([]ocispec.Descriptor, error) {
	data, err := ReadAll(ctx, s, d, MaxManifest)
	if e := (*MissingError)(nil); errors.As(err, &e) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	needed, optional, err := successors(d, data)
	if err != nil {
		return nil, &CorruptError{What: "manifest " + d.Digest.String(), Err: err}
	}
	return append(needed, optional...), nil
}

func (s *Store) sweepBlobs(ctx context.Context, live map[digest.Digest]bool) (freed int64, err error) {
	entries, err := os.ReadDir(s.blobs())
	if err != nil {
		return 0, mapError(s.root, err)
	}
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return freed, context.Cause(ctx)
		}
		d := digest.NewDigestFromEncoded(digest.SHA256, e.Name())
		if checkDigest(d) != nil || live[d] {
			continue
		}
		i, err := e.Info()
		if err != nil || !i.Mode().IsRegular() {
			continue
		}
		if err := os.Remove(s.blobPath(d)); err != nil {
			return freed, mapError(s.root, err)
		}
		if err := s.trust(d); err != nil {
			return freed, err
		}
		freed += i.Size()
	}
	return freed, nil
}
