package main

import (
	"context"
	"github.com/spf13/cobra"

	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/shim/config"
	"github.com/cryo-project/cryo/shim/restore"
)

func newDiskUsage(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "df",
		Short: "Show what takes space in the local store",
		Long: `df shows how much space snapshots take in the local store. OWN is what cryo rm of a snapshot frees; SHARED is
what other snapshots have too. Below are blobs that no snapshot needs, interrupted pulls (cryo prune removes
both), blobs that stay since a damaged manifest may need them, and what running commands work on.`,
		Example:           "  cryo df",
		Args:              exactly(),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.inStore(func(ctx context.Context, s *store.Store, _ []string) error {
			u, err := restore.DiskUsage(ctx, s)
			if err != nil {
				return err
			}
			return a.print(u, func() error { return a.printDiskUsage(u) })
		}),
	}
}

func (a *app) printDiskUsage(u restore.Usage) error {
	rows := [][]string{{"REFERENCE", "DIGEST", "SIZE", "OWN", "SHARED"}}
	for _, n := range u.Snapshots {
		rows = append(rows, []string{store.Familiar(n.Reference), short(n.Digest), config.Size(n.Size), config.Size(n.Own), config.Size(n.Shared)})
	}
	if err := a.table(rows...); err != nil {
		return err
	}
	a.line("")
	a.warnUnreadable(u.Unreadable)
	rows = [][]string{
		{"Snapshots:", config.Size(u.Blobs.Bytes)},
		{"Not needed by any:", config.Size(u.Unneeded.Bytes)},
		{"Interrupted pulls:", config.Size(u.Partial.Bytes)},
		{"Running commands:", config.Size(u.Working.Bytes)},
		{"Free:", config.Size(u.Free)},
	}
	if u.Unknown.Files > 0 {
		rows = append(rows, []string{"Not known whose:", config.Size(u.Unknown.Bytes)})
	}
	return a.table(rows...)
}
