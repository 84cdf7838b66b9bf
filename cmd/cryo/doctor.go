package main

import (
	"github.com/spf13/cobra"
)

func newDoctor(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "Examine this host, and say what to repair and how",
		Long: `doctor examines what checkpoint and restore need of this host: kernel, CRIU, runc, containerd, the shim,
cgroups, disk, GPU, and containerd's handlers for Kubernetes. The exit code is 4 if something keeps cryo from working.`,
		Example: `  cryo doctor
  cryo doctor --json | jq '.[] | select(.status == "fail")'`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.config()
			all := Examine(cmd.Context(), doctorOptions{Config: c, ConfigErr: err, Address: a.address, Connect: a.connect})
			if err := a.print(all, func() error { return a.printExamined(all) }); err != nil {
				return err
			}
			return Sick(all)
		},
	}
}

func (a *app) printExamined(all []Diagnosis) error {
	rows := [][]string{}
	for _, x := range all {
		rows = append(rows, []string{x.Status, x.Name, x.Detail})
	}
	if err := a.table(rows...); err != nil {
		return err
	}
	for _, x := range all {
		if x.Mend != "" {
			a.line("\n%s: %s\n  %s", x.Status, x.Name, x.Mend)
		}
	}
	return nil
}
