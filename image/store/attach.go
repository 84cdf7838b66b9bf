package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"

	"github.com/cryo-project/cryo/image/signature"
)

// Attach keeps signatures for as long as what they have signed is in the store. The caller has an [Operation] open. Damaged ones are left out.
func (s *Store) Attach(ctx context.Context, all []signature.Attached) error {
	var entries []ocispec.Descriptor
	for _, a := range all {
		if a.Err != nil {
			continue
		}
		for _, b := range append(a.Blobs(), a.Manifest) {
			if err := s.Push(ctx, b.Descriptor, bytes.NewReader(b.Data)); err != nil {
				return fmt.Errorf("keep a signature: %w", err)
			}
		}
		entries = append(entries, plain(a.Manifest.Descriptor))
	}
	if len(entries) == 0 {
		return nil
	}
	return s.update(ctx, func(i *ocispec.Index) (changed bool, err error) {
		for _, e := range entries {
			if !slices.ContainsFunc(i.Manifests, func(d ocispec.Descriptor) bool { return d.Digest == e.Digest }) {
				i.Manifests = append(i.Manifests, e)
				changed = true
			}
		}
		if changed {
			err = mapError(s.root, SyncDir(s.blobs()))
		}
		return changed, err
	})
}

// Sign signs what the store has with a key, unless that has signed it before.
func (s *Store) Sign(ctx context.Context, subject ocispec.Descriptor, key *signature.PrivateKey) (already bool, err error) {
	op, err := s.Begin(ctx)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, op.Close()) }()
	have, err := s.Signatures(ctx, subject.Digest)
	if err != nil {
		return false, err
	}
	made, err := key.Add(subject, have)
	if err != nil {
		return false, err
	}
	return len(made) == 0, s.Attach(ctx, made)
}

// attached reports whether an entry of index.json is that of a signature: it has no name, and is kept for its subject's sake.
func attached(d ocispec.Descriptor) bool {
	return d.Annotations[ocispec.AnnotationRefName] == "" && signature.Candidate(d)
}

// Signatures are those that the store keeps of a manifest, at most [signature.MaxAttached].
func (s *Store) Signatures(ctx context.Context, subject digest.Digest) ([]signature.Attached, error) {
	i, err := s.readIndex(ctx)
	if err != nil {
		return nil, err
	}
	return SignaturesIn(ctx, i, subject, s)
}

// SignaturesIn finds the signatures of a manifest that the index of a layout lists.
func SignaturesIn(ctx context.Context, i ocispec.Index, subject digest.Digest, src content.Fetcher) (found []signature.Attached, err error) {
	fetch := func(ctx context.Context, d ocispec.Descriptor, limit int64) ([]byte, error) {
		return ReadAll(ctx, src, d, limit)
	}
	seen := make(map[digest.Digest]bool) // a hostile index has one many times
	for _, d := range i.Manifests {
		if !attached(d) || seen[d.Digest] || len(found) == signature.MaxAttached {
			continue
		}
		seen[d.Digest] = true
		data, err := fetch(ctx, d, signature.MaxSize)
		if errdefs.IsDataLoss(err) || errdefs.IsNotFound(err) || err == nil && signature.Subject(data) != subject {
			continue // it is not known of what a damaged one is
		}
		var a signature.Attached
		if err == nil {
			a, err = signature.Read(ctx, fetch, d, subject)
		}
		if err != nil {
			return nil, fmt.Errorf("read a signature of %s: %w", subject, err)
		}
		found = append(found, a)
	}
	return found, nil
}
