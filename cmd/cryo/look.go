package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/cryo-project/cryo/image/registry"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/shim/restore"
)

// lookFlags say where a snapshot is looked at.
type lookFlags struct {
	registry registryFlags
	pull     string
}

func (f *lookFlags) register(cmd *cobra.Command) {
	f.registry.register(cmd)
	cmd.Flags().StringVar(&f.pull, "pull", restore.PullMissing, "when to look in the registry: missing (if it is not in the local store), or never")
	_ = cmd.RegisterFlagCompletionFunc("pull", cobra.FixedCompletions([]cobra.Completion{restore.PullMissing, restore.PullNever}, cobra.ShellCompDirectiveNoFileComp)) // fails only for flags that there are not
}

// look finds a snapshot in the local store, or else in the registry.
func (a *app) look(ctx context.Context, s *store.Store, ref string, flags *lookFlags) (*restore.Inspected, error) {
	if flags.pull != restore.PullMissing && flags.pull != restore.PullNever {
		return nil, misused("cryo", "--pull %q is none of missing, never", flags.pull)
	}
	ref, err := a.named(ctx, s, ref, "never")
	if err != nil {
		return nil, err
	}
	o := restore.InspectOptions{Address: a.address, Namespace: a.namespace}
	if o.Config, err = a.config(); err != nil {
		return nil, err
	}
	if flags.pull != restore.PullNever {
		o.Registry = func() (registry.Options, error) { return flags.registry.resolve(ctx, a) }
	}
	return restore.Inspect(ctx, s, ref, o)
}

// abandonable is for commands that have nothing to undo: an interrupted one that does not hear it ends all the same.
func abandonable(work func(cmd *cobra.Command, args []string) error) func(cmd *cobra.Command, args []string) error {
	return func(cmd *cobra.Command, args []string) error {
		return restore.Unawaited(cmd.Context(), func() error { return work(cmd, args) })
	}
}
