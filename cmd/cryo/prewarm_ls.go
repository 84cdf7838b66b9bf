package main

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/runtime/gpu/prewarmed"
)

// warmed describes a prewarmed snapshot.
type warmed struct {
	Reference string    `json:"reference"`
	Digest    string    `json:"digest"`
	Size      int64     `json:"size"`    // bytes of all its blobs; 0: only its device memory is kept
	Fetched   bool      `json:"fetched"` // for this: it is removed from the store with it
	Created   time.Time `json:"created"`
	Used      time.Time `json:"used"`            // last
	Stale     bool      `json:"stale,omitempty"` // the store has another snapshot, or none, by this name
	GPUs      []onGPU   `json:"gpus,omitempty"`  // device memory that is loaded
}

func warmedOf(p store.Prewarmed) warmed {
	return warmed{Reference: p.Reference, Digest: p.Digest.String(), Size: p.Size, Fetched: p.Fetched, Created: p.Created, Used: p.Used}
}

func newPrewarmList(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List prewarmed snapshots, the least recently used first",
		Example: `  cryo prewarm ls
  cryo prewarm ls --json | jq 'map(.size) | add'`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := a.store()
			if err != nil {
				return err
			}
			all, err := a.allWarmed(cmd.Context(), s)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(all)
			}
			rows := [][]string{{"REFERENCE", "DIGEST", "SIZE", "GPU MEMORY", "USED", ""}}
			for _, w := range all {
				rows = append(rows, []string{store.Familiar(w.Reference), short(w.Digest), size(w.Size), cmp.Or(gpuCell(w.GPUs), "-"), age(w.Used), w.note()})
			}
			return a.table(rows...)
		},
	}
}

// allWarmed lists what is prewarmed, with what is on GPUs.
func (a *app) allWarmed(ctx context.Context, s *store.Store) ([]warmed, error) {
	found, err := s.Prewarmed(ctx)
	if err != nil {
		return nil, err
	}
	loaded, err := prewarmed.New(s.Root()).List(ctx)
	if err != nil {
		return nil, err
	}
	all := []warmed{}
	for _, p := range found {
		all = append(all, warmedOf(p))
	}
	for _, l := range loaded {
		i := slices.IndexFunc(all, func(w warmed) bool { return w.Digest == l.Digest })
		if i < 0 {
			i = len(all)
			all = append(all, warmed{Reference: l.Reference, Digest: l.Digest, Created: l.Created, Used: l.Used})
		}
		all[i].GPUs = append(all[i].GPUs, gpusOf(l)...)
	}
	for i, w := range all {
		desc, err := s.Resolve(ctx, w.Reference)
		all[i].Stale = err != nil || desc.Digest.String() != w.Digest
	}
	return all, nil
}

// note is what there is to say of it.
func (w warmed) note() string {
	switch {
	case w.Stale:
		return "the store has no such snapshot by this name"
	case slices.ContainsFunc(w.GPUs, func(g onGPU) bool { return g.Mute }):
		return "who keeps its device memory does not answer"
	}
	return ""
}
