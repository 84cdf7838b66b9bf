package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/shim/notes"
)

// lostStatus is the status of a container that its shim has ended since it could not go on. The others are containerd's.
const lostStatus = "lost"

// noTask is the status of a container that has no task.
const noTask = "none"

type runningContainer struct {
	Container string        `json:"container"`
	Name      string        `json:"name"` // nerdctl's, else the container's
	Status    string        `json:"status"`
	PID       uint32        `json:"pid"`                 // 0: it has no process
	Snapshot  string        `json:"snapshot,omitempty"`  // digest of the one that it was restored from, else of the last that was taken while it ran on
	Reference string        `json:"reference,omitempty"` // by which it was restored
	Memory    *notes.Memory `json:"memory,omitempty"`    // of a restored container whose memory comes while it runs
	Lost      string        `json:"lost,omitempty"`      // the reason why the shim ended it
}

func newContainers(a *app) *cobra.Command {
	var quiet bool
	cmd := &cobra.Command{
		Use:   "ps",
		Short: "List the containers that run under cryo",
		Long: `ps lists the containers of cryo's runtime in containerd's namespace, whether they run or not. SNAPSHOT is the
one that a container was restored from, or else the last that was taken while it ran on. MEMORY is how much of a
restored container's memory is in place; it runs before all is. A container that was ended, since its memory was
damaged or did not come, is lost, and the reason follows.`,
		Example: `  cryo ps
  cryo ps --json | jq -r '.[] | select(.lost) | .name'`,
		Args:              exactly(),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, client, err := a.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer closing(ctx, "containerd", client)
			all, err := a.containers(ctx, client)
			if err != nil {
				return err
			}
			if a.forPrograms() {
				return a.printJSON(all)
			}
			if quiet {
				for _, c := range all {
					a.line("%s", c.Name)
				}
				return nil
			}
			return a.printContainers(all)
		},
	}
	a.formatFlag(cmd)
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "names only")
	return cmd
}

func (a *app) containers(ctx context.Context, client *containerd.Client) ([]runningContainer, error) {
	found, err := client.Containers(ctx)
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	bundles := bundlesOf(a.address, a.namespace)
	all := []runningContainer{}
	for _, container := range found {
		c, ours, err := lookAt(ctx, container, bundles)
		if errdefs.IsNotFound(err) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("look at container %s: %w", container.ID(), err)
		}
		if ours {
			all = append(all, c)
		}
	}
	return all, nil
}

// lookAt gives what there is to say of a container, and whether it is one of cryo's runtime.
func lookAt(ctx context.Context, container containerd.Container, bundles string) (c runningContainer, ours bool, err error) {
	info, err := container.Info(ctx)
	if err != nil {
		return c, false, err
	}
	c = runningContainer{Container: info.ID, Name: info.ID, Status: noTask, Reference: info.Labels["io.cryo.reference"]}
	if name := info.Labels[nerdctlName]; name != "" {
		c.Name = name
	}
	for _, key := range []string{restoredLabel, checkpointLabel} {
		if c.Snapshot == "" {
			c.Snapshot = info.Labels[key]
		}
	}
	task, err := container.Task(ctx, nil)
	if err == nil {
		c.PID = task.Pid()
		var s containerd.Status
		if s, err = task.Status(ctx); err == nil {
			c.Status = string(s.Status)
		}
	}
	if err != nil && !errdefs.IsNotFound(err) {
		return c, false, err
	}
	if !ourShim(info.Runtime.Name, c.PID) {
		return c, false, nil
	}
	if bundles == "" {
		return c, true, nil
	}
	bundle := filepath.Join(bundles, info.ID)
	var noted, read error
	c.Memory, noted = notes.ReadMemory(bundle)
	if c.Lost, read = notes.ReadLost(bundle); c.Lost != "" {
		c.Status = lostStatus
	}
	if c.Status == lostStatus || c.Status == string(containerd.Stopped) {
		c.PID = 0
	}
	return c, true, errors.Join(noted, read)
}

func (a *app) printContainers(all []runningContainer) error {
	rows := [][]string{{"NAME", "STATUS", "PID", "SNAPSHOT", "MEMORY"}}
	for _, c := range all {
		row := []string{c.Name, c.Status, "-", "-", "-"}
		if c.PID != 0 {
			row[2] = fmt.Sprint(c.PID)
		}
		switch {
		case c.Reference != "":
			row[3] = store.Familiar(c.Reference)
		case c.Snapshot != "":
			row[3] = short(c.Snapshot)
		}
		switch m := c.Memory; {
		case m != nil && m.Total == 0:
			row[4] = "on its way"
		case m != nil && m.Here < m.Total:
			row[4] = fmt.Sprintf("%s of %s (%d%%)", size(m.Here), size(m.Total), 100*m.Here/m.Total)
		case m != nil || c.Reference != "":
			row[4] = "all"
		}
		rows = append(rows, row)
	}
	if err := a.table(rows...); err != nil {
		return err
	}
	for _, c := range all {
		switch {
		case c.Lost != "":
			a.line("%s is lost: %s", c.Name, c.Lost)
		case c.Memory != nil && c.Memory.Waiting != "":
			a.line("%s waits for memory: %s", c.Name, c.Memory.Waiting)
		}
	}
	return nil
}
