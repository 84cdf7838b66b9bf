package restore

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/runtime/gpu"
)

// PrewarmedSnapshot describes a prewarmed snapshot.
type PrewarmedSnapshot struct {
	Reference string    `json:"reference"`
	Digest    string    `json:"digest"`
	Size      int64     `json:"size"`    // bytes of all its blobs; 0: only its device memory is kept
	Fetched   bool      `json:"fetched"` // for this: it is removed from the store with it
	Created   time.Time `json:"created"`
	Used      time.Time `json:"used"`            // last
	Stale     bool      `json:"stale,omitempty"` // the store has another snapshot, or none, by this name
	GPUs      []OnGPU   `json:"gpus,omitempty"`  // device memory that is loaded
	// Paused are the pools of containers that stand still, one for each namespace of containerd that has one.
	Paused []PoolState `json:"paused,omitempty"`
}

func of(p store.Prewarmed) PrewarmedSnapshot {
	return PrewarmedSnapshot{Reference: p.Reference, Digest: p.Digest.String(), Size: p.Size, Fetched: p.Fetched, Created: p.Created, Used: p.Used}
}

// OnGPU is device memory that is loaded on a GPU.
type OnGPU struct {
	UUID   string `json:"uuid"`
	Index  int    `json:"index"`
	Memory int64  `json:"memory"`           // bytes
	Leased bool   `json:"leased,omitempty"` // a restore is about to attach it
}

// gpusOf puts it into words of ours.
func gpusOf(i gpu.Prewarmed) (all []OnGPU) {
	bytes := i.Bytes()
	for _, d := range i.Facts.Devices {
		if bytes[d.UUID] > 0 {
			all = append(all, OnGPU{UUID: d.UUID, Index: d.Index, Memory: bytes[d.UUID], Leased: i.Leased})
		}
	}
	return all
}

// ListPrewarmed returns what is prewarmed, with what is on GPUs, the least recently used first.
func ListPrewarmed(ctx context.Context, s *store.Store) ([]PrewarmedSnapshot, error) {
	found, err := s.Prewarmed(ctx)
	if err != nil {
		return nil, err
	}
	loaded, err := gpu.NewPrewarmedDir(s.Root()).List(ctx)
	if err != nil {
		return nil, err
	}
	all := []PrewarmedSnapshot{}
	for _, p := range found {
		all = append(all, of(p))
	}
	for _, l := range loaded {
		i := slices.IndexFunc(all, func(w PrewarmedSnapshot) bool { return w.Digest == l.Digest })
		if i < 0 {
			i = len(all)
			all = append(all, PrewarmedSnapshot{Reference: l.Reference, Digest: l.Digest, Created: l.Created, Used: l.Used})
		}
		all[i].GPUs = append(all[i].GPUs, gpusOf(l)...)
	}
	pools, err := Pools(s.Root())
	if err != nil {
		return nil, err
	}
	for _, p := range pools {
		state, err := p.State()
		if err != nil {
			return nil, err
		}
		i := slices.IndexFunc(all, func(w PrewarmedSnapshot) bool { return w.Reference == p.Reference })
		if i < 0 {
			i = len(all)
			all = append(all, PrewarmedSnapshot{Reference: p.Reference, Digest: p.Digest.String()})
		}
		all[i].Paused = append(all[i].Paused, state)
	}
	for i, w := range all {
		desc, err := s.Resolve(ctx, w.Reference)
		all[i].Stale = err != nil || desc.Digest.String() != w.Digest
	}
	return all, nil
}

// ChoosePrewarmed finds prewarmed snapshots by reference or digest.
func ChoosePrewarmed(all []PrewarmedSnapshot, refs []string) (chosen []PrewarmedSnapshot, failed []error) {
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
				if !slices.ContainsFunc(chosen, func(c PrewarmedSnapshot) bool { return c.Digest == i.Digest }) {
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

// RemovePrewarmed gives back what a snapshot has, on GPUs and in the store.
func RemovePrewarmed(ctx context.Context, s *store.Store, w PrewarmedSnapshot) error {
	if err := ReleasePrewarmed(ctx, s.Root(), w.Digest); err != nil {
		return err
	}
	return s.RemovePrewarmed(ctx, digest.Digest(w.Digest))
}

// ReleasePrewarmed ends what is loaded of a snapshot that is not prewarmed any more.
func ReleasePrewarmed(ctx context.Context, root, snapshot string) error {
	d := gpu.NewPrewarmedDir(root)
	all, err := d.List(ctx)
	for _, i := range all {
		if i.Digest == snapshot {
			err = errors.Join(err, d.Remove(ctx, i))
		}
	}
	return err
}
