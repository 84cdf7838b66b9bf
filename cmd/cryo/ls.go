package main

import (
	"context"
	"time"

	"github.com/containerd/log"
	"github.com/spf13/cobra"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/store"
)

type listed struct {
	Reference string    `json:"reference"`
	Digest    string    `json:"digest"`
	Container string    `json:"container"`
	Image     string    `json:"image"`
	Created   time.Time `json:"created"`
	Memory    int64     `json:"memory"` // bytes in the container, zero pages included
	Size      int64     `json:"size"`   // bytes of all blobs
	Error     string    `json:"error,omitempty"`
}

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
		RunE: abandonable(func(cmd *cobra.Command, _ []string) error {
			s, err := a.store()
			if err != nil {
				return err
			}
			list, err := list(cmd.Context(), s)
			if err != nil {
				return err
			}
			if a.forPrograms() {
				return a.printJSON(list)
			}
			if quiet {
				for _, l := range list {
					a.line("%s", l.Reference)
				}
				return nil
			}
			rows := [][]string{{"REFERENCE", "DIGEST", "CONTAINER", "CREATED", "MEMORY", "SIZE"}}
			for _, l := range list {
				if l.Error != "" {
					rows = append(rows, []string{store.Familiar(l.Reference), short(l.Digest), "damaged: cryo verify tells more", "-", "-", "-"})
					continue
				}
				rows = append(rows, []string{store.Familiar(l.Reference), short(l.Digest), l.Container, age(l.Created), size(l.Memory), size(l.Size)})
			}
			return a.table(rows...)
		}),
	}
	a.formatFlag(cmd)
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "references only")
	return cmd
}

// list describes every tag; one that is damaged does not hide the others.
func list(ctx context.Context, s *store.Store) ([]listed, error) {
	tags, err := s.Tags(ctx)
	if err != nil {
		return nil, err
	}
	all := []listed{}
	for _, t := range tags {
		l := listed{Reference: t.Ref, Digest: t.Descriptor.Digest.String()}
		snapshot, err := image.Open(ctx, s, t.Descriptor)
		if err != nil {
			log.G(ctx).WithError(err).WithField("ref", t.Ref).Debug("open")
			l.Error = err.Error()
			all = append(all, l)
			continue
		}
		c := snapshot.Config
		l.Container, l.Image, l.Created, l.Memory, l.Size = c.Container.ID, c.Container.Image, c.Created, c.Memory.Total, snapshot.Size()
		all = append(all, l)
	}
	return all, nil
}

// short gives the start of a digest, for tables.
func short(digest string) string {
	const length = len("sha256:") + 12
	return digest[:min(len(digest), length)]
}
