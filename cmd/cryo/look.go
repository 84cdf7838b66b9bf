package main

import (
	"context"
	"errors"
	"fmt"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/spf13/cobra"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/registry"
	"github.com/cryo-project/cryo/image/signature"
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
	cmd.Flags().StringVar(&f.pull, "pull", restore.PullMissing, "look into the registry: missing (unless it is in the local store), or never")
	_ = cmd.RegisterFlagCompletionFunc("pull", cobra.FixedCompletions([]cobra.Completion{restore.PullMissing, restore.PullNever}, cobra.ShellCompDirectiveNoFileComp)) // fails only for flags that there are not
}

// looked is a snapshot that is looked at, where it is.
type looked struct {
	desc   ocispec.Descriptor
	from   image.Fetcher    // what has its small parts
	puller *registry.Puller // nil: it is in the local store
	names  []string         // that it has
	signed []signature.Attached
}

// look finds a snapshot in the local store. If only a registry has it, look fetches its small parts, and close removes them. A name that says
// no registry is looked for in the local store alone.
func (a *app) look(ctx context.Context, s *store.Store, ref string, flags *lookFlags) (l *looked, err error) {
	if flags.pull != restore.PullMissing && flags.pull != restore.PullNever {
		return nil, &usageError{command: "cryo", problem: fmt.Sprintf("--pull %q is none of missing, never", flags.pull)}
	}
	if ref, err = a.named(ctx, s, ref, "never"); err != nil {
		return nil, err
	}
	l = &looked{from: s}
	l.desc, err = s.Resolve(ctx, ref)
	var unknown *store.UnknownRefError
	if errors.As(err, &unknown) && store.NamesRegistry(ref) && flags.pull != restore.PullNever {
		return a.lookInRegistry(ctx, s, ref, &flags.registry)
	}
	if err != nil {
		return nil, err
	}
	if l.names, err = restore.Names(ctx, s, ref, l.desc.Digest); err != nil {
		return nil, err
	}
	l.signed, err = s.Signatures(ctx, l.desc.Digest)
	return l, err
}

func (a *app) lookInRegistry(ctx context.Context, s *store.Store, ref string, flags *registryFlags) (*looked, error) {
	options, err := flags.resolve(ctx, a)
	if err != nil {
		return nil, err
	}
	j, err := a.judging(false)
	if err != nil {
		return nil, err
	}
	options.Judge = j.Judge
	p, err := registry.Look(ctx, s, ref, options)
	if err != nil {
		return nil, err
	}
	return &looked{desc: p.Descriptor(), from: p, puller: p, names: []string{p.Name()}, signed: p.Signatures()}, nil
}

func (l *looked) close() error {
	if l.puller == nil {
		return nil
	}
	return l.puller.Abandon()
}
