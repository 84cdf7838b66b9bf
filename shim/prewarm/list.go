package prewarm

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/cryo-project/cryo/image/spec/failure"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/runtime/gpu/prewarmed"
)

// Listed describes a prewarmed snapshot.
type Listed struct {
	Reference string    `json:"reference"`
	Digest    string    `json:"digest"`
	Size      int64     `json:"size"`    // bytes of all its blobs; 0: only its device memory is kept
	Fetched   bool      `json:"fetched"` // for this: it is removed from the store with it
	Created   time.Time `json:"created"`
	Used      time.Time `json:"used"`            // last
	Stale     bool      `json:"stale,omitempty"` // the store has another snapshot, or none, by this name
	GPUs      []OnGPU   `json:"gpus,omitempty"`  // device memory that is loaded
}

func of(p store.Prewarmed) Listed {
	return Listed{Reference: p.Reference, Digest: p.Digest.String(), Size: p.Size, Fetched: p.Fetched, Created: p.Created, Used: p.Used}
}

// OnGPU is device memory that is loaded on a GPU.
type OnGPU struct {
	UUID   string `json:"uuid"`
	Index  int    `json:"index"`
	Memory int64  `json:"memory"`           // bytes
	Leased bool   `json:"leased,omitempty"` // a restore is about to attach it
}

// gpusOf puts it into words of ours.
func gpusOf(i prewarmed.Info) (all []OnGPU) {
	bytes := i.Bytes()
	for _, d := range i.Facts.Devices {
		if bytes[d.UUID] > 0 {
			all = append(all, OnGPU{UUID: d.UUID, Index: d.Index, Memory: bytes[d.UUID], Leased: i.Leased})
		}
	}
	return all
}

// List returns what is prewarmed, with what is on GPUs, the least recently used first.
func List(ctx context.Context, s *store.Store) ([]Listed, error) {
	found, err := s.Prewarmed(ctx)
	if err != nil {
		return nil, err
	}
	loaded, err := prewarmed.New(s.Root()).List(ctx)
	if err != nil {
		return nil, err
	}
	all := []Listed{}
	for _, p := range found {
		all = append(all, of(p))
	}
	for _, l := range loaded {
		i := slices.IndexFunc(all, func(w Listed) bool { return w.Digest == l.Digest })
		if i < 0 {
			i = len(all)
			all = append(all, Listed{Reference: l.Reference, Digest: l.Digest, Created: l.Created, Used: l.Used})
		}
		all[i].GPUs = append(all[i].GPUs, gpusOf(l)...)
	}
	for i, w := range all {
		desc, err := s.Resolve(ctx, w.Reference)
		all[i].Stale = err != nil || desc.Digest.String() != w.Digest
	}
	return all, nil
}

// Choose finds prewarmed snapshots by reference or digest.
func Choose(all []Listed, refs []string) (chosen []Listed, failed []error) {
	for _, ref := range refs {
		full, err := store.Normalize(ref)
		if err != nil {
			failed = append(failed, err)
			continue
		}
		found := false
		for _, i := range all {
			if i.Reference == full || i.Digest == ref {
				found = true
				if !slices.ContainsFunc(chosen, func(c Listed) bool { return c.Digest == i.Digest }) {
					chosen = append(chosen, i)
				}
			}
		}
		if !found {
			failed = append(failed, failure.New(errdefs.ErrNotFound, "list what is with cryo prewarm ls", "%s is not prewarmed", ref))
		}
	}
	return chosen, failed
}

// Remove gives back what a snapshot has, on GPUs and in the store.
func Remove(ctx context.Context, s *store.Store, w Listed) error {
	if err := LetGo(ctx, s.Root(), w.Digest); err != nil {
		return err
	}
	return s.RemovePrewarmed(ctx, digest.Digest(w.Digest))
}

// LetGo ends what is loaded of a snapshot that is not prewarmed any more.
func LetGo(ctx context.Context, root, snapshot string) error {
	d := prewarmed.New(root)
	all, err := d.List(ctx)
	for _, i := range all {
		if i.Digest == snapshot {
			err = errors.Join(err, d.Remove(ctx, i))
		}
	}
	return err
}
