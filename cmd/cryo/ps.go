package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/shim/config"
	"github.com/cryo-project/cryo/shim/daemon"
)

func newContainers(a *app) *cobra.Command {
	var quiet bool
	cmd := &cobra.Command{
		Use:   "ps",
		Short: "List the containers that run under cryo",
		Long: `ps lists the containers of cryo's runtime in containerd's namespace, whether they run or not. SNAPSHOT is the
one that a container was restored from, or else the last that was taken while it ran on. MEMORY is how much of a
restored container's memory is in place; it runs before all is. A container that was ended because its memory
was damaged or did not come is shown as lost, with the reason.`,
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
			all, err := daemon.List(ctx, client, a.address, a.namespace)
			if err != nil {
				return err
			}
			return a.print(all, func() error {
				if !quiet {
					return a.printContainers(all)
				}
				for _, c := range all {
					a.line("%s", c.Name)
				}
				return nil
			})
		},
	}
	a.formatFlag(cmd)
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "names only")
	return cmd
}

func (a *app) printContainers(all []daemon.Container) error {
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
			row[4] = fmt.Sprintf("%s of %s (%d%%)", config.Size(m.Here), config.Size(m.Total), 100*m.Here/m.Total)
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
