package main

import (
	"cmp"
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/shim/config"
	"github.com/cryo-project/cryo/shim/restore"
)

func newPrewarmList(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List prewarmed snapshots, the least recently used first",
		Example: `  cryo prewarm ls
  cryo prewarm ls --json | jq 'map(.size) | add'`,
		Args: exactly(),
		RunE: a.inStore(func(ctx context.Context, s *store.Store, _ []string) error {
			all, err := restore.ListPrewarmed(ctx, s)
			if err != nil {
				return err
			}
			return a.print(all, func() error {
				rows := [][]string{{"REFERENCE", "DIGEST", "SIZE", "GPU MEMORY", "PAUSED", "USED", ""}}
				for _, w := range all {
					rows = append(rows, []string{store.Familiar(w.Reference), short(w.Digest), config.Size(w.Size), cmp.Or(strings.Join(gpuCells(w.GPUs), ", "), "-"), cmp.Or(strings.Join(pausedCells(w.Paused), ", "), "-"), age(w.Used), prewarmNote(w)})
				}
				return a.table(rows...)
			})
		}),
	}
}

// prewarmNote is what there is to say of it.
func prewarmNote(w restore.PrewarmedSnapshot) string {
	if w.Stale {
		return "the store has no such snapshot by this name"
	}
	return ""
}
