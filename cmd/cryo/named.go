package main

import (
	"context"
	"errors"
	"path"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image/registry"
	"github.com/cryo-project/cryo/image/store"
)

// named replaces the beginning of a digest by the digest of the snapshot in the local store, and gives any other ref back. If pull, which is as
// --pull of cryo restore, has Docker's registry asked for a ref without a registry, it warns.
func (a *app) named(ctx context.Context, s *store.Store, ref, pull string) (string, error) {
	if registry.IsLocation(ref) {
		return ref, nil
	}
	ref, err := s.Expand(ctx, ref)
	if err != nil || pull == "never" {
		return ref, err
	}
	if pull != "always" {
		if _, err := s.Resolve(ctx, ref); err == nil {
			return ref, nil
		}
	}
	a.warnHub(ref)
	if near := near(ctx, s, ref); len(near) > 0 {
		a.warn("the local store has no snapshot of the name %s; it has %s", ref, strings.Join(near, ", "))
	}
	return ref, nil
}

// near returns the names of the local store that a user may have meant: those of another tag, of another registry or owner, or with one or two other characters. There are three at most.
func near(ctx context.Context, s *store.Store, ref string) (names []string) {
	wanted, err := store.Normalize(ref)
	if err != nil {
		return nil
	}
	tags, err := s.Tags(ctx)
	if err != nil { // the names are only help
		return nil
	}
	base := func(ref string) string {
		name, _, _ := strings.Cut(path.Base(ref), ":")
		return name
	}
	for _, t := range tags {
		if len(names) < 3 && (base(t.Ref) == base(wanted) || distance(t.Ref, wanted) <= 2) {
			names = append(names, store.Familiar(t.Ref))
		}
	}
	return names
}

// distance returns how many characters must be inserted, removed or replaced to make b of a (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}

// keep finds the snapshot of the local store that a user names. Its blobs stay in the store until the caller closes the operation.
func (a *app) keep(ctx context.Context, ref string) (_ *store.Store, op *store.Operation, desc ocispec.Descriptor, err error) {
	s, err := a.store()
	if err != nil {
		return nil, nil, desc, err
	}
	if op, err = s.Begin(ctx); err != nil {
		return nil, nil, desc, err
	}
	if ref, err = a.named(ctx, s, ref, "never"); err == nil {
		desc, err = s.Resolve(ctx, ref)
	}
	if err != nil {
		return nil, nil, desc, errors.Join(err, op.Close())
	}
	return s, op, desc, nil
}

// warnHub says that Docker's registry is used for a name without one.
func (a *app) warnHub(ref string) {
	full, err := store.Normalize(ref)
	if err == nil && full != ref && !store.NamesRegistry(ref) && !registry.IsLocation(ref) {
		a.warn("%s names no registry: docker.io is asked for %s", ref, full)
	}
}
