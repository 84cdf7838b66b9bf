package main

import (
	"github.com/spf13/cobra"

	"github.com/cryo-project/cryo/image"
)

type verified struct {
	Reference string `json:"reference"`
	Digest    string `json:"digest"`
	Size      int64  `json:"size"`
}

func newVerify(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "verify REF",
		Short: "Read all of a snapshot and check it",
		Long: `verify reads every blob of a snapshot in the local store and checks every digest, every frame of memory and
every reference between the parts.`,
		Example:           "  cryo verify app:warm",
		Args:              exactly("REF"),
		ValidArgsFunction: a.completeRefs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			s, err := a.store()
			if err != nil {
				return err
			}
			op, err := s.Begin(ctx)
			if err != nil {
				return err
			}
			defer closing(ctx, "operation", op)
			desc, err := s.Resolve(ctx, args[0])
			if err != nil {
				return err
			}
			if err := image.Verify(ctx, s, desc, a.report()); err != nil {
				return err
			}
			snapshot, err := image.Open(ctx, s, desc)
			if err != nil {
				return err
			}
			a.progress.stop()
			v := verified{Reference: args[0], Digest: desc.Digest.String(), Size: total(snapshot)}
			if a.json {
				return a.printJSON(v)
			}
			a.line("%s %s: all %s are as they should be", v.Reference, v.Digest, size(v.Size))
			return nil
		},
	}
}
