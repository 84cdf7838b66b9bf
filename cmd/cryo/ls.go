package main

import (
	"context"
	"github.com/spf13/cobra"

	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/shim/config"
	"github.com/cryo-project/cryo/shim/restore"
)

func newList(a *app) *cobra.Command {
	var quiet bool
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List the snapshots of the local store",
		Example: `  cryo ls
  cryo ls --format '{{.reference}} {{.digest}}'
  cryo ls --json | jq -r '.[].reference'`,
		Args: exactly(),
		RunE: abandonable(a.inStore(func(ctx context.Context, s *store.Store, _ []string) error {
			list, err := restore.ListTagged(ctx, s)
			if err != nil {
				return err
			}
			return a.print(list, func() error {
				rows := [][]string{{"REFERENCE", "DIGEST", "CONTAINER", "CREATED", "MEMORY", "SIZE"}}
				for _, l := range list {
					switch row := []string{store.Familiar(l.Reference), short(l.Digest)}; {
					case quiet:
						a.line("%s", l.Reference)
					case l.Error != "":
						rows = append(rows, append(row, "damaged: cryo verify tells more", "-", "-", "-"))
					default:
						rows = append(rows, append(row, l.Container, age(l.Created), config.Size(l.Memory), config.Size(l.Size)))
					}
				}
				if quiet {
					return nil
				}
				return a.table(rows...)
			})
		})),
	}
	a.formatFlag(cmd)
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "references only")
	return cmd
}

// short returns the start of a digest, for tables.
func short(digest string) string {
	const length = len("sha256:") + 12
	return digest[:min(len(digest), length)]
}
