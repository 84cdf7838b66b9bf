package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"github.com/spf13/cobra"

	"github.com/cryo-project/cryo/image/store"
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
				return &usageError{command: cmd.CommandPath(), problem: "name either snapshots or --all"}
			}
			return nil
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) (refs []cobra.Completion, _ cobra.ShellCompDirective) {
			s, err := a.store()
			if err != nil {
				return nil, cobra.ShellCompDirectiveError
			}
			all, err := a.allWarmed(cmd.Context(), s)
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
			all, err := a.allWarmed(cmd.Context(), s)
			if err != nil {
				return err
			}
			chosen, failed := choose(all, args)
			if everything {
				chosen, failed = all, nil
			}
			gone := []warmed{}
			for _, w := range chosen {
				if err := a.cool(cmd.Context(), s, w); err != nil {
					failed = append(failed, err)
					continue
				}
				gone = append(gone, w)
				if !a.json {
					a.line("removed %s, %s", store.Familiar(w.Reference), w.sizes())
				}
			}
			if a.json {
				failed = append(failed, a.printJSON(gone))
			}
			return errors.Join(failed...)
		},
	}
	cmd.Flags().BoolVar(&everything, "all", false, "all prewarmed snapshots")
	return cmd
}

// cool gives back what a snapshot has, on GPUs and in the store.
func (a *app) cool(ctx context.Context, s *store.Store, w warmed) error {
	if err := letGo(ctx, s.Root(), w.Digest); err != nil {
		return err
	}
	return s.RemovePrewarmed(ctx, digest.Digest(w.Digest))
}

// sizes says what it has.
func (w warmed) sizes() string {
	switch {
	case len(w.GPUs) == 0:
		return size(w.Size)
	case w.Size == 0:
		return gpuCell(w.GPUs)
	}
	return size(w.Size) + ", " + gpuCell(w.GPUs)
}

// choose finds prewarmed snapshots by reference or digest.
func choose(all []warmed, refs []string) (chosen []warmed, failed []error) {
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
				if !slices.ContainsFunc(chosen, func(c warmed) bool { return c.Digest == i.Digest }) {
					chosen = append(chosen, i)
				}
			}
		}
		if !found {
			failed = append(failed, &notPrewarmedError{ref})
		}
	}
	return chosen, failed
}

// notPrewarmedError says that no such snapshot is prewarmed. Its kind is NotFound.
type notPrewarmedError struct{ ref string }

func (e *notPrewarmedError) Error() string { return fmt.Sprintf("%s is not prewarmed", e.ref) }

func (e *notPrewarmedError) Hint() string { return "list what is with cryo prewarm ls" }

func (e *notPrewarmedError) Unwrap() error { return errdefs.ErrNotFound }
