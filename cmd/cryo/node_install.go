package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/cryo-project/cryo/shim/node"
)

func newNodeInstall(a *app) *cobra.Command {
	var o node.InstallOptions
	cmd := &cobra.Command{
		Use:   "install",
		Short: "Install cryo on the machine whose root directory is mounted here",
		Long: `install is for the init container of a DaemonSet. It copies cryo's programs and CRIU to /opt/cryo of the machine,
and makes them the runtime cryo of its containerd, by /etc/containerd/conf.d/cryo.toml. It asks the machine's
"containerd config dump" whether containerd reads that file; if not, it removes the file again. What is done
already is not repeated.

containerd knows the runtime only after a restart. Without --restart, install fails with exit code 4 until
it was restarted.`,
		Example: `  cryo node install --host /host
  cryo node install --host /host --configuration /etc/cryo-config/config.toml --restart`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Host == "" {
				return misused(cmd.CommandPath(), "missing --host")
			}
			r, err := node.Install(cmd.Context(), o)
			if err != nil {
				return err
			}
			return a.print(r, func() error {
				for _, name := range r.Changed {
					a.line("wrote %s", name)
				}
				if r.Restarted {
					a.line("restarted containerd")
				}
				a.line("cryo is installed")
				return nil
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Host, "host", "", "`directory` where the machine's root directory is mounted")
	f.StringVar(&o.From, "from", node.InstallDir, "`directory` with bin, lib, criu and share, which is copied")
	f.StringVar(&o.Configuration, "configuration", "", "`file` that becomes /etc/cryo/config.toml of the machine (default: that stays as it is)")
	f.BoolVar(&o.Restart, "restart", os.Getenv("CRYO_RESTART_CONTAINERD") == "true", "restart containerd where it does not know of cryo yet; running containers live on (CRYO_RESTART_CONTAINERD=true)")
	return cmd
}
