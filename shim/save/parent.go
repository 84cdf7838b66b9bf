package save

import (
	"context"
	"errors"
	"fmt"
	"os"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/opencontainers/go-digest"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/shim/daemon"
)

// parentOf opens the snapshot of which the new one is to be the increment; nil: of none. Unless the user has chosen, it is the last that was
// taken of the container or, where that is gone, the one that the container was made of.
func (t *taking) parentOf(ctx context.Context, info containers.Container) (*image.Parent, error) {
	switch t.Parent {
	case "none":
		return nil, nil
	case "":
	default:
		return openParent(ctx, t.store, t.Parent)
	}
	for _, name := range []string{daemon.CheckpointExtension, daemon.RestoredExtension} {
		d := daemon.DigestIn(info, name)
		if d == "" {
			continue
		}
		p, err := openParent(ctx, t.store, d.String())
		switch {
		case err == nil:
			return p, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case !errors.Is(err, store.ErrUnknownRef):
			t.Warn("%v; the new snapshot shares nothing with it", err)
		}
	}
	return nil, nil
}

func openParent(ctx context.Context, s *store.Store, ref string) (*image.Parent, error) {
	desc, err := s.Resolve(ctx, ref)
	if err != nil {
		return nil, err
	}
	p, err := image.OpenParent(ctx, s, desc, int64(os.Getpagesize()))
	if err != nil {
		return nil, fmt.Errorf("open the parent %s: %w", ref, err)
	}
	return p, nil
}

// remember notes in containerd's record of a container which snapshot was taken of it, also where ctx has ended meanwhile.
func remember(ctx context.Context, client *containerd.Client, id string, snapshot digest.Digest) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	if err := daemon.Extend(ctx, client, id, daemon.CheckpointExtension, snapshot); err != nil {
		return fmt.Errorf("note the snapshot of %s in containerd: %w", id, err)
	}
	return nil
}
