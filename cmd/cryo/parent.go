package main

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
	"github.com/cryo-project/cryo/shim/restore"
)

// Labels of containers that name snapshots by digest.
const (
	restoredLabel   = restore.SnapshotLabel // it was made of this one
	checkpointLabel = "io.cryo.checkpoint"  // the last that was taken while it ran on
)

// parentOf opens the snapshot of which the new one is to be the increment; nil: of none. Unless the user has chosen, it is the last that was
// taken of the container or, where that is gone, the one that the container was made of.
func (a *app) parentOf(ctx context.Context, s *store.Store, f checkpointFlags, labels map[string]string) (*image.Parent, error) {
	switch f.parent {
	case "none":
		return nil, nil
	case "":
	default:
		return openParent(ctx, s, f.parent)
	}
	for _, key := range []string{checkpointLabel, restoredLabel} {
		if digest.Digest(labels[key]).Validate() != nil {
			continue
		}
		p, err := openParent(ctx, s, labels[key])
		var unknown *store.UnknownRefError
		switch {
		case err == nil:
			return p, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case !errors.As(err, &unknown):
			a.warn("%v; the new snapshot shares nothing with it", err)
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
	labels := map[string]string{checkpointLabel: snapshot.String()}
	if _, err := client.ContainerService().Update(ctx, containers.Container{ID: id, Labels: labels}, "labels."+checkpointLabel); err != nil {
		return fmt.Errorf("note the snapshot in the labels of %s: %w", id, err)
	}
	return nil
}

// shared is how many bytes of a snapshot's segments are its parent's.
func shared(s *image.Snapshot) (n int64) {
	if s.Config.Parent == nil {
		return 0
	}
	for _, l := range s.Segments()[:s.Config.Parent.Segments] {
		n += l.Size
	}
	return n
}

// sharedRow says in words what a snapshot shares with its parent.
func sharedRow(c image.Config, sharedBytes int64, segments int) string {
	k := c.Parent.Segments
	return fmt.Sprintf("shared with it: %s in %d segments (%s not in use); new: %s in %d",
		size(sharedBytes), k, size(c.Memory.Unused), size(c.Memory.Stored-sharedBytes), segments-k)
}
