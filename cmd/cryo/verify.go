package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/trust"
	"github.com/cryo-project/cryo/shim/config"
	"github.com/cryo-project/cryo/shim/restore"
)

type verified struct {
	Reference string `json:"reference"`
	Digest    string `json:"digest"`
	Size      int64  `json:"size"`
	NotRead   int64  `json:"notRead,omitempty"` // bytes that only the registry has: it said that it has them, and they were not read
	restore.Reviewed
	Error *errorReport `json:"error,omitempty"`
}

func newVerify(a *app) *cobra.Command {
	var allow []string
	var flags lookFlags
	cmd := &cobra.Command{
		Use:   "verify REF",
		Short: "Read all of a snapshot and check every digest",
		Long: `verify reads every blob of a snapshot in the local store and checks every digest, every frame of memory and
every reference between the parts. Then it reviews CRIU's images and what the snapshot asks of a host, as cryo
restore does. The exit code is 7 if a restore would need --allow, and 8 if it would refuse the snapshot
whatever is allowed.

Of a snapshot that is only in a registry it reads all but memory and files, and asks the registry whether those
are there.`,
		Example:           "  cryo verify app:warm",
		Args:              exactly("REF"),
		ValidArgsFunction: a.completeRefs(1),
		RunE: abandonable(func(cmd *cobra.Command, args []string) error {
			granted, err := restore.Grants(allow)
			if err != nil {
				return err
			}
			return a.verify(cmd.Context(), args[0], trust.Policy{Allow: granted}, &flags)
		}),
	}
	cmd.Flags().StringArrayVar(&allow, "allow", nil, "grant what this flag grants in cryo restore")
	flags.register(cmd)
	return cmd
}

func (a *app) verify(ctx context.Context, ref string, p trust.Policy, flags *lookFlags) (err error) {
	s, err := a.store()
	if err != nil {
		return err
	}
	op, err := s.Begin(ctx)
	if err != nil {
		return err
	}
	defer closing(ctx, "operation", op)
	l, err := a.look(ctx, s, ref, flags)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	v := verified{Reference: ref, Digest: l.Descriptor.Digest.String()}
	if v.NotRead, err = l.Verify(ctx, a.report()); err != nil {
		return err
	}
	snapshot, err := image.Open(ctx, l.From, l.Descriptor)
	if err != nil {
		return err
	}
	v.Size = snapshot.Size()
	if v.Reviewed, err = l.Review(ctx, snapshot, p); err != nil {
		return err
	}
	refused := v.Err()
	v.Error = a.errorReport(ctx, refused)
	return errors.Join(refused, a.print(v, func() error {
		if !l.InRegistry {
			a.line("%s %s: all %s are as they should be", v.Reference, v.Digest, config.Size(v.Size))
		} else {
			a.line("%s %s: in the registry alone. All but its memory and files, %s, are as they should be. The other %s are there; cryo pull reads them", v.Reference, v.Digest, config.Size(v.Size-v.NotRead), config.Size(v.NotRead))
		}
		return nil
	}))
}
