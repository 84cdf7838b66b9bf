package store

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/cryo-project/cryo/image/failure"
)

// abbreviation is the beginning of a digest, as Docker takes it. What is shorter is a name more likely.
var abbreviation = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(?:sha256:)?([0-9a-f]{4,63})$`) })

// Expand returns the digest of the tagged manifest that ref is the beginning of, with or without "sha256:". What the store has by the name ref,
// and what is no such beginning, is given back as it is. More than one is an InvalidArgument.
func (s *Store) Expand(ctx context.Context, ref string) (string, error) {
	parts := abbreviation().FindStringSubmatch(ref)
	if parts == nil {
		return ref, nil
	}
	if _, err := s.Resolve(ctx, ref); !errors.Is(err, ErrUnknownRef) {
		return ref, nil // its user meets the error, if there is one
	}
	tags, err := s.Tags(ctx)
	if err != nil {
		return ref, err
	}
	var found digest.Digest
	for _, t := range tags {
		d := t.Descriptor.Digest
		if !strings.HasPrefix(d.Encoded(), parts[1]) || d == found {
			continue
		}
		if found != "" {
			return ref, failure.New(errdefs.ErrInvalidArgument, "write more of the digest, see `cryo ls`, or use a name",
				"the digests of several snapshots in the local store begin with %s", ref)
		}
		found = d
	}
	if found == "" {
		return ref, nil
	}
	return found.String(), nil
}
