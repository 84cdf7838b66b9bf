package registry

import (
	"context"
	"errors"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image"
)

// spare is a rootfs difference that nobody needs, for the snapshot in the store to be whole.
type spare struct {
	d    ocispec.Descriptor
	from image.Fetcher
}

// blobs lists it. It may be called on nil.
func (s *spare) blobs() []ocispec.Descriptor {
	if s == nil {
		return nil
	}
	return []ocispec.Descriptor{s.d}
}

// isSpare notes a blob that nobody needs.
func (p *Puller) isSpare(d ocispec.Descriptor) bool {
	if d.MediaType != image.MediaTypeRootFS || p.o.RootFS == nil {
		return false
	}
	from := p.o.RootFS(d)
	if from == nil {
		return false
	}
	p.spare = &spare{d: d, from: from}
	return true
}

// bringSpare brings what nobody needs: from where the caller has it, or else from the registry.
func (p *Puller) bringSpare(ctx context.Context) error {
	if p.spare == nil {
		return nil
	}
	d, t := p.spare.d, &tracker{m: p.sum}
	there, err := p.dst.Exists(ctx, d)
	if err != nil {
		return err
	}
	if !there {
		if rc, err := p.spare.from.Fetch(ctx, d); err == nil {
			err = p.dst.Push(ctx, d, rc)
			there = errors.Join(err, rc.Close()) == nil // else the registry is asked
		}
	}
	if there {
		t.there(d.Size)
		t.seek(d.Size)
		return nil
	}
	part, err := p.repo.verified(ctx, p.dst, d, t)
	if err != nil || part == nil {
		return err
	}
	return errors.Join(part.Place(ctx), part.Close())
}
