package main

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/shim/daemon"
	"github.com/cryo-project/cryo/shim/worker"
)

type keptOutput struct {
	Container string `json:"container"`
	Output    string `json:"output"`
}

func newLogs(a *app) *cobra.Command {
	var follow bool
	var tail int
	cmd := &cobra.Command{
		Use:   "logs NAME",
		Short: "Show the output of a restored container",
		Long: `logs shows what a restored container has written to its standard output and standard error since it was restored.
The last 1 to 2 MiB are kept until the container's task is removed. To keep all of it, or keep it for longer, restore the
container with --log-uri. Output at a terminal is not kept: ctr tasks attach shows it.`,
		Example: `  cryo logs cache
  cryo logs cache --tail 20 --follow`,
		Args:              exactly("NAME"),
		ValidArgsFunction: a.completeContainers,
		RunE: func(cmd *cobra.Command, args []string) error {
			if follow && a.json {
				return misused(cmd.CommandPath(), "--follow does not end, and --json prints one document: use one of them")
			}
			return a.logs(cmd.Context(), args[0], tail, follow)
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on with what comes, until the container ends")
	cmd.Flags().IntVar(&tail, "tail", -1, "show that many lines of the end (-1: all)")
	return cmd
}

func (a *app) logs(ctx context.Context, name string, tail int, follow bool) error {
	ctx, client, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer closing(ctx, "containerd", client)
	container, err := daemon.Find(ctx, client, name)
	if err != nil {
		return err
	}
	bundles := daemon.Bundles(a.address, a.namespace)
	bundle := filepath.Join(bundles, container.ID())
	all, latest, err := worker.ReadOutput(bundle)
	if bundles == "" || errors.Is(err, fs.ErrNotExist) {
		return failure.New(errdefs.ErrNotFound,
			"cryo keeps that of restored containers without a terminal and without --log-uri, until their task is removed; else look where the container's creator has it written, or attach",
			"no output of %s is kept", name)
	}
	if err != nil {
		return err
	}
	all = worker.LastLines(all, tail)
	if a.json {
		return a.printJSON(keptOutput{Container: container.ID(), Output: string(all)})
	}
	if _, err := a.stdout.Write(all); err != nil || !follow {
		return err
	}
	return worker.FollowOutput(ctx, a.stdout, bundle, latest)
}
