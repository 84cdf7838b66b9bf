package prewarm

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/image/warm"
	"github.com/cryo-project/cryo/runtime/gpu/prewarmed"
)

// Listed describes a prewarmed snapshot.
type Listed struct {
	Reference string    `json:"reference"`
	Digest    string    `json:"digest"`
	Memory    int64     `json:"memory"` // bytes
	Disk      int64     `json:"disk"`   // bytes that were fetched for it
	Created   time.Time `json:"created"`
	Used      time.Time `json:"used"`            // last
	Stale     bool      `json:"stale,omitempty"` // the store has another snapshot, or none, by this name
	GPUs      []OnGPU   `json:"gpus,omitempty"`  // device memory that is loaded
}

func of(i warm.Info) Listed {
	return Listed{Reference: i.Reference, Digest: i.Digest.String(), Memory: i.Memory, Disk: i.Disk, Created: i.Created, Used: i.Used}
}

// OnGPU is device memory that is loaded on a GPU.
type OnGPU struct {
	UUID   string `json:"uuid"`
	Index  int    `json:"index"`
	Memory int64  `json:"memory"`           // bytes
	Leased bool   `json:"leased,omitempty"` // a restore is about to attach it
	Mute   bool   `json:"mute,omitempty"`   // who keeps it does not answer
}

// gpusOf puts it into words of ours.
func gpusOf(i prewarmed.Info) (all []OnGPU) {
	bytes := i.Bytes()
	for _, d := range i.Facts.Devices {
		if bytes[d.UUID] > 0 {
			all = append(all, OnGPU{UUID: d.UUID, Index: d.Index, Memory: bytes[d.UUID], Leased: i.Leased, Mute: i.Mute})
		}
	}
	return all
}

// List gives what is in memory, and what is on GPUs, the least recently used first.
func List(ctx context.Context, s *store.Store) ([]Listed, error) {
	found, err := warm.New(s.Root()).List()
	if err != nil {
		return nil, err
	}
	loaded, err := prewarmed.New(s.Root()).List(ctx)
	if err != nil {
		return nil, err
	}
	all := []Listed{}
	for _, i := range found {
		all = append(all, of(i))
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
			failed = append(failed, &warm.NotWarmError{Name: ref})
		}
	}
	return chosen, failed
}

// Remove gives back what a snapshot has, in memory and on GPUs, and removes from the store what was fetched for it. warn is told what of that does not go.
func Remove(ctx context.Context, s *store.Store, w Listed, warn func(format string, args ...any)) error {
	if err := letGo(ctx, s.Root(), w.Digest); err != nil {
		return err
	}
	if w.Memory == 0 {
		return nil
	}
	if err := warm.New(s.Root()).Remove(ctx, digest.Digest(w.Digest)); err != nil {
		return err
	}
	forget(ctx, s, warn, []warm.Info{{Reference: w.Reference, Digest: digest.Digest(w.Digest), Size: warm.Size{Memory: w.Memory, Disk: w.Disk}}})
	return nil
}

// letGo ends what is loaded of a snapshot that is not prewarmed any more.
func letGo(ctx context.Context, root, snapshot string) error {
	d := prewarmed.New(root)
	all, err := d.List(ctx)
	for _, i := range all {
		if i.Digest == snapshot {
			err = errors.Join(err, d.Remove(ctx, i))
		}
	}
	return err
}
