package main

import (
	"context"
	"errors"
	"math"

	"github.com/spf13/cobra"

	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/shim/config"
)

type removed struct {
	Reference string       `json:"reference"`
	Freed     int64        `json:"freed"` // bytes
	Error     *errorReport `json:"error,omitempty"`
}

func newRemove(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "rm REF...",
		Aliases: []string{"remove"},
		Short:   "Remove snapshots from the local store",
		Long: `rm removes references from the local store, and what no other reference needs. While another cryo works on the
store, blobs are kept until it has ended. If a snapshot has a pool (cryo prewarm --paused), its containers are removed that
no cryo restore has taken.`,
		Example: `  cryo rm app:warm
  cryo rm $(cryo ls -q)`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return misused(cmd.CommandPath(), "missing REF")
			}
			return nil
		},
		ValidArgsFunction: a.completeRefs(math.MaxInt),
		RunE: a.inStore(func(ctx context.Context, s *store.Store, args []string) error {
			all := []removed{}
			var failed []error
			var unreadable []store.Unreadable // after the last one
			for _, ref := range args {
				full, err := a.named(ctx, s, ref, "never")
				var r store.Removed
				if err == nil {
					r, err = s.Remove(ctx, full)
				}
				unreadable = r.Unreadable
				if err != nil {
					failed = append(failed, err)
					all = append(all, removed{Reference: ref, Error: a.errorReport(ctx, err)})
					continue
				}
				all = append(all, removed{Reference: ref, Freed: r.Freed})
				if !a.json {
					a.line("removed %s, %s freed", ref, config.Size(r.Freed))
				}
			}
			a.warnUnreadable(unreadable)
			if err := a.endPools(ctx, s); err != nil {
				failed = append(failed, err)
			}
			if a.json {
				failed = append(failed, a.printJSON(all))
			}
			return errors.Join(failed...)
		}),
	}
}
