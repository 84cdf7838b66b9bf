package main

import (
	"context"
	"github.com/spf13/cobra"

	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/shim/config"
)

type pruneResult struct {
	store.Pruned
	DryRun bool `json:"dryRun"`
}

func newPrune(a *app) *cobra.Command {
	var dry bool
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Remove from the local store what no snapshot needs",
		Long: `prune removes interrupted pulls, which could still be resumed, and blobs that no snapshot of the local store
needs. Without prune, such blobs are removed when no cryo works on the store, and interrupted pulls after a week
(partial-pulls of [store] in the configuration). Snapshots stay: cryo rm removes them.

Where the manifest of a snapshot is damaged or gone, it is not known which blobs it needs, and all blobs stay.
Where index.json is damaged too, prune makes it again of the blobs; the names of snapshots are lost then.`,
		Example: `  cryo prune --dry-run
  cryo prune`,
		Args:              exactly(),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.inStore(func(ctx context.Context, s *store.Store, _ []string) (err error) {
			r := pruneResult{DryRun: dry}
			verb := "removed"
			if dry {
				verb = "would remove"
				r.Pruned, err = s.Prunable(ctx)
			} else {
				r.Pruned, err = s.Prune(ctx)
			}
			if err != nil {
				return err
			}
			a.warnUnreadable(r.Unreadable)
			return a.print(r, func() error {
				a.line("%s %s that no snapshot needs, in %d blobs", verb, config.Size(r.Unneeded.Bytes), r.Unneeded.Files)
				a.line("%s %s of interrupted pulls, in %d blobs", verb, config.Size(r.Partial.Bytes), r.Partial.Files)
				if r.Unknown.Files > 0 {
					a.line("%s stay, in %d blobs, since it is not known whether a snapshot needs them; cryo rm sha256:DIGEST removes one that index.json lists", config.Size(r.Unknown.Bytes), r.Unknown.Files)
				}
				if r.Busy {
					a.line("another cryo works on the store: what it may need stays until it has ended")
				}
				return nil
			})
		}),
	}
	cmd.Flags().BoolVar(&dry, "dry-run", false, "remove nothing, and say what would go")
	return cmd
}

// warnUnreadable names manifests that keep blobs from being collected.
func (a *app) warnUnreadable(all []store.Unreadable) {
	for _, u := range all {
		a.warn("%s", u.String())
	}
}
