package main

import (
	"context"
	"errors"
	"math"

	"strings"

	"github.com/spf13/cobra"

	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/shim/config"
	"github.com/cryo-project/cryo/shim/restore"
)

func newPrewarmRemove(a *app) *cobra.Command {
	var everything bool
	cmd := &cobra.Command{
		Use:     "rm REF...",
		Aliases: []string{"remove"},
		Short:   "Remove prewarmed snapshots",
		Long: `rm removes from the local store what was fetched for prewarmed snapshots, and frees their memory on GPUs, and removes the
containers of their pools that no cryo restore has taken. Snapshots that were in the store before stay there. A container that is being restored from one still gets all
of its memory.`,
		Example: `  cryo prewarm rm registry.example.com/snapshots/cache:warm
  cryo prewarm rm --all`,
		Args: func(cmd *cobra.Command, args []string) error {
			if everything == (len(args) > 0) {
				return misused(cmd.CommandPath(), "name either snapshots or --all")
			}
			return nil
		},
		ValidArgsFunction: a.completeRefs(math.MaxInt),
		RunE: a.inStore(func(ctx context.Context, s *store.Store, args []string) error {
			all, err := restore.ListPrewarmed(ctx, s)
			if err != nil {
				return err
			}
			chosen, failed := restore.ChoosePrewarmed(all, args)
			if everything {
				chosen, failed = all, nil
			}
			gone := []restore.PrewarmedSnapshot{}
			for _, w := range chosen {
				err := restore.EndPoolsOf(ctx, s, w.Reference, a.connectTo)
				if err == nil {
					err = restore.RemovePrewarmed(ctx, s, w)
				}
				if err != nil {
					failed = append(failed, err)
					continue
				}
				gone = append(gone, w)
				if !a.json {
					a.line("removed %s, %s", store.Familiar(w.Reference), prewarmedSizes(w))
				}
			}
			if a.json {
				failed = append(failed, a.printJSON(gone))
			}
			return errors.Join(failed...)
		}),
	}
	cmd.Flags().BoolVar(&everything, "all", false, "all prewarmed snapshots")
	return cmd
}

// prewarmedSizes returns what it has, in the store and on GPUs.
func prewarmedSizes(w restore.PrewarmedSnapshot) string {
	all := gpuCells(w.GPUs)
	if w.Size > 0 || len(all) == 0 {
		all = append([]string{config.Size(w.Size)}, all...)
	}
	return strings.Join(all, ", ")
}
