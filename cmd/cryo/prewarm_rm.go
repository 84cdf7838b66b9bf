package main

import (
	"errors"
	"slices"

	"github.com/spf13/cobra"

	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/image/warm"
)

func newPrewarmRemove(a *app) *cobra.Command {
	var everything bool
	cmd := &cobra.Command{
		Use:     "rm REF...",
		Aliases: []string{"remove"},
		Short:   "Keep snapshots ready no longer",
		Long: `rm gives back the memory of prewarmed snapshots, and removes what was fetched for them from the local store. A
container whose memory is being filled in from one gets all of it; the memory is free when it has.`,
		Example: `  cryo prewarm rm registry.example.com/snapshots/cache:warm
  cryo prewarm rm --all`,
		Args: func(cmd *cobra.Command, args []string) error {
			if everything == (len(args) > 0) {
				return &usageError{command: cmd.CommandPath(), problem: "name either snapshots or --all"}
			}
			return nil
		},
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) (refs []cobra.Completion, _ cobra.ShellCompDirective) {
			s, err := a.store()
			if err != nil {
				return nil, cobra.ShellCompDirectiveError
			}
			all, err := warm.New(s.Root()).List()
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
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := a.store()
			if err != nil {
				return err
			}
			d := warm.New(s.Root())
			all, err := d.List()
			if err != nil {
				return err
			}
			chosen, failed := choose(all, args)
			if everything {
				chosen, failed = all, nil
			}
			var removed []warm.Info
			for _, i := range chosen {
				if err := d.Remove(cmd.Context(), i.Digest); err != nil {
					failed = append(failed, err)
					continue
				}
				removed = append(removed, i)
				if !a.json {
					a.line("removed %s, %s of memory", store.Familiar(i.Reference), size(i.Memory))
				}
			}
			gone := a.forget(cmd.Context(), s, removed)
			if a.json {
				failed = append(failed, a.printJSON(append([]warmed{}, gone...)))
			}
			return errors.Join(failed...)
		},
	}
	cmd.Flags().BoolVar(&everything, "all", false, "all of them")
	return cmd
}

// choose finds prewarmed snapshots by reference or digest.
func choose(all []warm.Info, refs []string) (chosen []warm.Info, failed []error) {
	for _, ref := range refs {
		full, err := store.Normalize(ref)
		if err != nil {
			failed = append(failed, err)
			continue
		}
		found := false
		for _, i := range all {
			if i.Reference == full || i.Digest.String() == ref {
				found = true
				if !slices.Contains(chosen, i) {
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
