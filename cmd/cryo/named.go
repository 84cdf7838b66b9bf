package main

import (
	"context"

	"github.com/cryo-project/cryo/image/archive"
	"github.com/cryo-project/cryo/image/store"
)

// named gives the snapshot that a user names: the digest of one in the local store for the beginning of that digest, else ref itself. Where a
// registry is to be asked that ref does not name, it says which. pull is as --pull of cryo restore.
func (a *app) named(ctx context.Context, s *store.Store, ref, pull string) (string, error) {
	if archive.IsLocation(ref) {
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
	return ref, nil
}

// warnHub says that Docker's registry is used for a name without one.
func (a *app) warnHub(ref string) {
	full, err := store.Normalize(ref)
	if err == nil && full != ref && !store.NamesRegistry(ref) && !archive.IsLocation(ref) {
		a.warn("%s names no registry: docker.io is asked for %s", ref, full)
	}
}
