package registry

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"
	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry/remote/auth"

	"github.com/cryo-project/cryo/image/signature"
	"github.com/cryo-project/cryo/image/store"
)

const (
	// signaturesTimeout bounds how long the signatures of one snapshot may take to come.
	signaturesTimeout = time.Minute
	// referrerPages bounds how many answers list them.
	referrerPages = 16
)

// errEnough ends a listing.
var errEnough = errors.New("enough")

// signatures fetches those of a manifest, by the referrers API or the tag that takes its place.
func (r *repo) signatures(ctx context.Context, subject ocispec.Descriptor) ([]signature.Attached, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, signaturesTimeout, &stalledError{signaturesTimeout})
	defer cancel()
	var found []ocispec.Descriptor
	err := r.manager.Referrers(ctx, subject, signature.MediaType, func(page []ocispec.Descriptor) error {
		for _, d := range page {
			if !signature.Candidate(d) {
				continue
			}
			if found = append(found, d); len(found) == signature.MaxAttached {
				return errEnough
			}
		}
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		return nil, fmt.Errorf("list signatures: %w", err)
	}
	all := make([]signature.Attached, len(found))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(4)
	for i, d := range found {
		group.Go(func() (err error) {
			all[i], err = signature.Read(ctx, r.fetchSmall, d, subject.Digest)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, fmt.Errorf("fetch a signature: %w", err)
	}
	return all, nil
}

// fetchSmall is a [signature.Fetch].
func (r *repo) fetchSmall(ctx context.Context, d ocispec.Descriptor, limit int64) ([]byte, error) {
	data, err := store.ReadAll(ctx, r.manager, d, limit)
	if errors.Is(err, errdef.ErrNotFound) {
		err = fmt.Errorf("%s has no blob %s: %w", r.name, d.Digest, errdefs.ErrNotFound)
	}
	return data, err
}

// judge fetches the signatures of the snapshot and asks whether it may be used. Before that only its digest is known of it.
func (p *Puller) judge(ctx context.Context, desc ocispec.Descriptor) error {
	if p.o.Judge == nil {
		return nil
	}
	all, err := p.repo.signatures(ctx, desc)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	p.signed = all
	return p.o.Judge([]string{p.repo.name}, desc.Digest, all, p.repo.classify(ctx, err))
}

// putSignatures sends those that the store has of a manifest that the registry has.
func (r *repo) putSignatures(ctx context.Context, all []signature.Attached, subject ocispec.Descriptor, sum *meter) error {
	for _, a := range all {
		if a.Err != nil {
			continue
		}
		if err := r.put(ctx, sum, &subject, append(a.Blobs(), a.Manifest)...); err != nil {
			return fmt.Errorf("send signature: %w", err)
		}
	}
	return nil
}

// Signer makes a signature of what it is given; none where it has one already.
type Signer func(subject ocispec.Descriptor, have []signature.Attached) ([]signature.Attached, error)

// Sign attaches a signature to the snapshot that ref names in a registry, and gives the digest that was signed.
func Sign(ctx context.Context, ref string, o Options, sign Signer) (digest.Digest, error) {
	r, err := connect(ctx, "sign", ref, o)
	if err != nil {
		return "", err
	}
	defer r.close()
	d, err := r.sign(r.scoped(ctx, auth.ActionPull, auth.ActionPush), sign, o)
	if err != nil {
		return "", fmt.Errorf("sign %s: %w", ref, r.classify(ctx, err))
	}
	return d, nil
}

func (r *repo) sign(ctx context.Context, sign Signer, o Options) (digest.Digest, error) {
	n, err := r.snapshot(ctx, nil)
	if err != nil {
		return "", err
	}
	subject := n.desc
	have, err := r.signatures(ctx, subject)
	if err != nil {
		return "", err
	}
	more, err := sign(subject, have)
	if err != nil {
		return "", err
	}
	untagged := r.untagged()
	return subject.Digest, untagged.putSignatures(ctx, more, subject, newMeter("push", 0, o))
}
