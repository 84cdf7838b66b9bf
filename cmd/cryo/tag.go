package main

import (
	"github.com/spf13/cobra"

	"github.com/cryo-project/cryo/image/store"
)

func newTag(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "tag REF NEW",
		Short: "Give a snapshot of the local store one more name",
		Long: `tag gives the snapshot REF of the local store the name NEW too. If another snapshot has that name, it loses it, and
what only that one needed is removed.`,
		Example: `  cryo tag app:warm registry.example.com/snapshots/app:warm
  cryo tag 4d5a2f0c91be app:good`,
		Args:              exactly("REF", "NEW"),
		ValidArgsFunction: a.completeRefs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			s, op, desc, err := a.keep(ctx, args[0])
			if err != nil {
				return err
			}
			defer closing(ctx, "operation", op)
			if err := s.Tag(ctx, desc, args[1]); err != nil {
				return err
			}
			full, err := store.Normalize(args[1])
			if err != nil {
				return err
			}
			return a.print(movedResult{Reference: full, Digest: desc.Digest.String()}, func() error {
				a.line("%s %s", store.Familiar(full), desc.Digest)
				return nil
			})
		},
	}
}
