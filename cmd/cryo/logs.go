package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	"github.com/cryo-project/cryo/shim/output"
)

type keptOutput struct {
	Container string `json:"container"`
	Output    string `json:"output"`
}

// noOutputError says that nothing is kept of a container's output. Its kind is NotFound.
type noOutputError struct{ name string }

func (e *noOutputError) Error() string { return fmt.Sprintf("no output of %s is kept", e.name) }

func (e *noOutputError) Hint() string {
	return "cryo keeps that of restored containers without a terminal and without --log-uri, until their task is removed; else look where the container's creator has it written, or attach"
}

func (e *noOutputError) Is(target error) bool { return target == errdefs.ErrNotFound }

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
				return &usageError{command: cmd.CommandPath(), problem: "--follow does not end, and --json prints one document: use one of them"}
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
	container, err := a.find(ctx, client, name)
	if err != nil {
		return err
	}
	bundles := bundlesOf(a.address, a.namespace)
	bundle := filepath.Join(bundles, container.ID())
	all, latest, err := output.Read(bundle)
	if bundles == "" || errors.Is(err, fs.ErrNotExist) {
		return &noOutputError{name: name}
	}
	if err != nil {
		return err
	}
	all = lastLines(all, tail)
	if a.json {
		return a.printJSON(keptOutput{Container: container.ID(), Output: string(all)})
	}
	if _, err := a.stdout.Write(all); err != nil || !follow {
		return err
	}
	return a.follow(ctx, bundle, latest)
}

// lastLines gives the last n lines; all if n is negative.
func lastLines(text []byte, n int) []byte {
	if n < 0 {
		return text
	}
	at := len(text)
	for ; n > 0 && at > 0; n-- {
		at = bytes.LastIndexByte(text[:at-1], '\n') + 1
	}
	return text[at:]
}

// follow prints what comes into the file of a bundle behind from, and what comes into those that take its place, until all is kept.
func (a *app) follow(ctx context.Context, bundle string, from int64) error {
	f, err := os.Open(output.Path(bundle))
	if err != nil {
		return fmt.Errorf("read output: %w", err)
	}
	defer func() { _ = f.Close() }()
	if _, err := f.Seek(from, io.SeekStart); err != nil {
		return fmt.Errorf("read output: %w", err)
	}
	for {
		_, ended := os.Stat(output.Pipe(bundle))
		next, missing := os.Stat(output.Path(bundle))
		if _, err := io.Copy(a.stdout, f); err != nil {
			return fmt.Errorf("show output: %w", err)
		}
		own, err := f.Stat()
		if err != nil {
			return fmt.Errorf("read output: %w", err)
		}
		switch {
		case missing == nil && !os.SameFile(own, next): // nothing more comes into this one
			_ = f.Close()
			if f, err = os.Open(output.Path(bundle)); err != nil {
				return fmt.Errorf("read output: %w", err)
			}
			continue
		case ended != nil:
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pollTime):
		}
	}
}
