package main

import (
	"context"
	"errors"
	"slices"

	"github.com/spf13/cobra"

	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/shim/prewarm"
	"github.com/cryo-project/cryo/shim/size"
)

func newPrewarmRemove(a *app) *cobra.Command {
	var everything bool
	cmd := &cobra.Command{
		Use:     "rm REF...",
		Aliases: []string{"remove"},
		Short:   "Remove prewarmed snapshots",
		Long: `rm removes from the local store what was fetched for prewarmed snapshots, and frees their memory on GPUs.
Snapshots that were in the store before stay there. A container that is being restored from one still gets all
of its memory.`,
		Example: `  cryo prewarm rm registry.example.com/snapshots/cache:warm
  cryo prewarm rm --all`,
		Args: func(cmd *cobra.Command, args []string) error {
			if everything == (len(args) > 0) {
				return misused(cmd.CommandPath(), "name either snapshots or --all")
			}
			return nil
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) (refs []cobra.Completion, _ cobra.ShellCompDirective) {
			s, err := a.store()
			if err != nil {
				return nil, cobra.ShellCompDirectiveError
			}
			all, err := prewarm.List(cmd.Context(), s)
			if err != nil {
				return nil, cobra.ShellCompDirectiveError
			}
			for _, i := range all {
				if ref := store.Familiar(i.Reference); !slices.Contains(args, ref) {
					refs = append(refs, ref)
				}
			}
			return refs, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: a.inStore(func(ctx context.Context, s *store.Store, args []string) error {
			all, err := prewarm.List(ctx, s)
			if err != nil {
				return err
			}
			chosen, failed := prewarm.Choose(all, args)
			if everything {
				chosen, failed = all, nil
			}
			gone := []prewarm.Listed{}
			for _, w := range chosen {
				if err := prewarm.Remove(ctx, s, w); err != nil {
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

// prewarmedSizes says what it has.
func prewarmedSizes(w prewarm.Listed) string {
	switch {
	case len(w.GPUs) == 0:
		return size.Of(w.Size)
	case w.Size == 0:
		return gpuCell(w.GPUs)
	}
	return size.Of(w.Size) + ", " + gpuCell(w.GPUs)
}
