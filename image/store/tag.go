package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Tagged is a reference and the manifest that it names.
type Tagged struct {
	Ref        string // normalised
	Descriptor ocispec.Descriptor
}

// Tags lists the store's references in order.
func (s *Store) Tags(ctx context.Context) ([]Tagged, error) {
	i, err := s.readIndex(ctx)
	if err != nil {
		return nil, err
	}
	var tags []Tagged
	for _, d := range i.Manifests {
		if ref := d.Annotations[ocispec.AnnotationRefName]; ref != "" {
			tags = append(tags, Tagged{Ref: ref, Descriptor: plain(d)})
		}
	}
	slices.SortStableFunc(tags, func(a, b Tagged) int { return strings.Compare(a.Ref, b.Ref) })
	return tags, nil
}

// plain is the descriptor without what index.json adds to it.
func plain(d ocispec.Descriptor) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: d.MediaType, Digest: d.Digest, Size: d.Size, ArtifactType: d.ArtifactType}
}

// Resolve finds the manifest that ref names: a reference in any form that [Normalize] takes, or the digest of a tagged
// manifest. Errors are [ErrUnknownRef] and [InvalidRef].
func (s *Store) Resolve(ctx context.Context, ref string) (ocispec.Descriptor, error) {
	full, err := Normalize(ref)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	i, err := s.readIndex(ctx)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	found := slices.IndexFunc(i.Manifests, func(d ocispec.Descriptor) bool { return matches(d, full) })
	if found < 0 {
		found = slices.IndexFunc(i.Manifests, func(d ocispec.Descriptor) bool { return d.Annotations[ocispec.AnnotationRefName] == ref })
	}
	if found < 0 {
		lost := slices.ContainsFunc(i.Manifests, func(d ocispec.Descriptor) bool {
			return strings.HasPrefix(d.Annotations[ocispec.AnnotationRefName], LostName+":")
		})
		return ocispec.Descriptor{}, unknownRef(ref, lost)
	}
	return plain(i.Manifests[found]), nil
}

// matches reports whether an entry of index.json is what a normalised reference names.
func matches(d ocispec.Descriptor, full string) bool {
	if d.Annotations[ocispec.AnnotationRefName] == full {
		return true
	}
	dg, ok := refDigest(full)
	return ok && d.Digest == dg
}

// Tag makes ref name the manifest d. A name that is in use moves, and what only the other manifest needed goes with the end of the last operation.
// All that the manifest needs must be in the store, or the error is a [ErrMissing].
func (s *Store) Tag(ctx context.Context, d ocispec.Descriptor, ref string) error {
	full, err := Normalize(ref)
	if err != nil {
		return err
	}
	if _, ok := bareDigest(full); ok {
		return InvalidRef(ref, errors.New("a digest alone is no name"))
	}
	if dg, ok := refDigest(full); ok && dg != d.Digest {
		return InvalidRef(ref, fmt.Errorf("the manifest has digest %s", d.Digest))
	}
	entry := plain(d)
	entry.Annotations = map[string]string{ocispec.AnnotationRefName: full, AnnotationName: full}
	err = s.update(ctx, func(i *ocispec.Index) (bool, error) {
		// Under the lock, so that no collection can come in between.
		if err := s.checkComplete(ctx, d, ref, make(map[digest.Digest]bool)); err != nil {
			return false, err
		}
		// Once for all blobs: what no name needs yet may be gone after a power failure. Those that were here before are among them, since
		// the process that brought them may not have come this far.
		if err := SyncDir(s.blobs()); err != nil {
			return false, mapError(s.root, err)
		}
		named := func(old ocispec.Descriptor) bool { return old.Annotations[ocispec.AnnotationRefName] == full }
		if slices.ContainsFunc(i.Manifests, func(old ocispec.Descriptor) bool { return named(old) && old.Digest != d.Digest }) {
			if err := s.postpone(); err != nil {
				return false, err
			}
		}
		// With the name, an entry without one goes that a rebuilt index had to keep the manifest: it would outlast the name.
		i.Manifests = slices.DeleteFunc(i.Manifests, func(old ocispec.Descriptor) bool {
			return named(old) || old.Digest == d.Digest && old.Annotations[ocispec.AnnotationRefName] == "" && !attached(old)
		})
		i.Manifests = append(i.Manifests, entry)
		return true, nil
	})
	if err != nil {
		return fmt.Errorf("tag %s: %w", ref, err)
	}
	s.changed(ctx)
	return nil
}

// Walk calls visit once for each blob that a manifest needs and for itself, each after what it needs, with its file and that. A file may be linked to, and not changed.
func (s *Store) Walk(ctx context.Context, d ocispec.Descriptor, visit func(d ocispec.Descriptor, path string, needs []ocispec.Descriptor) error) error {
	seen := map[digest.Digest]bool{} // the author of a snapshot may list a blob any number of times
	var walk func(d ocispec.Descriptor) error
	walk = func(d ocispec.Descriptor) error {
		if seen[d.Digest] {
			return nil
		}
		seen[d.Digest] = true
		var needs []ocispec.Descriptor
		if IsManifest(d.MediaType) {
			data, err := ReadAll(ctx, s, d, MaxManifest)
			if err != nil {
				return err
			}
			if needs, _, err = successors(d, data); err != nil {
				return Corrupt("manifest "+d.Digest.String(), err)
			}
		}
		for _, n := range needs {
			if err := walk(n); err != nil {
				return err
			}
		}
		return visit(d, s.blobPath(d.Digest), needs)
	}
	return walk(d)
}

// checkComplete walks what d needs.
func (s *Store) checkComplete(ctx context.Context, d ocispec.Descriptor, ref string, seen map[digest.Digest]bool) error {
	if seen[d.Digest] {
		return nil
	}
	seen[d.Digest] = true
	ok, err := s.Exists(ctx, d)
	if err != nil {
		return err
	}
	if !ok {
		return missing(d.Digest, ref)
	}
	if !IsManifest(d.MediaType) {
		return nil
	}
	data, err := ReadAll(ctx, s, d, MaxManifest)
	if err != nil {
		return err
	}
	needed, _, err := successors(d, data)
	if err != nil {
		return Corrupt("manifest of "+ref, err)
	}
	for _, n := range needed {
		if err := s.checkComplete(ctx, n, ref, seen); err != nil {
			return err
		}
	}
	return nil
}

// Untag removes a reference and keeps the blobs. A digest removes all references of that manifest.
func (s *Store) Untag(ctx context.Context, ref string) error {
	full, err := Normalize(ref)
	if err != nil {
		return err
	}
	err = s.update(ctx, func(i *ocispec.Index) (bool, error) {
		n := len(i.Manifests)
		i.Manifests = slices.DeleteFunc(i.Manifests, func(d ocispec.Descriptor) bool {
			if _, bare := bareDigest(full); bare {
				return matches(d, full)
			}
			name := d.Annotations[ocispec.AnnotationRefName]
			return name == full || name == ref
		})
		if len(i.Manifests) == n {
			return false, unknownRef(ref, false)
		}
		return true, nil
	})
	if err == nil {
		s.changed(ctx)
	}
	return err
}
