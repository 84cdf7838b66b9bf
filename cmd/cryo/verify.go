package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/cryo-project/cryo/image"
)

type verified struct {
	Reference string `json:"reference"`
	Digest    string `json:"digest"`
	Size      int64  `json:"size"`
	reviewed
}

func newVerify(a *app) *cobra.Command {
	var allow []string
	cmd := &cobra.Command{
		Use:   "verify REF",
		Short: "Read all of a snapshot and check every digest",
		Long: `verify reads every blob of a snapshot in the local store and checks every digest, every frame of memory and
every reference between the parts. Then it reviews CRIU's images and what the snapshot asks of a host, as cryo
restore does. The exit code is 7 if a restore would need --allow, and 8 if it would refuse the snapshot
whatever is allowed.`,
		Example:           "  cryo verify app:warm",
		Args:              exactly("REF"),
		ValidArgsFunction: a.completeRefs(1),
		RunE: abandonable(func(cmd *cobra.Command, args []string) error {
			f := restoreFlags{pull: "never", allow: allow}
			if err := f.check(); err != nil {
				return err
			}
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
			v := verified{Reference: args[0], Digest: desc.Digest.String(), Size: total(snapshot)}
			if v.reviewed, err = a.review(ctx, s, snapshot, f.policy); err != nil {
				return err
			}
			a.progress.stop()
			if a.json {
				return errors.Join(v.Err(), a.printJSON(v))
			}
			a.line("%s %s: all %s are as they should be", v.Reference, v.Digest, size(v.Size))
			return v.Err()
		}),
	}
	cmd.Flags().StringArrayVar(&allow, "allow", nil, "grant what this flag grants in cryo restore")
	return cmd
}
