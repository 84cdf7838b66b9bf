package main

import (
	"github.com/spf13/cobra"

	"github.com/cryo-project/cryo/shim/restore"
)

func newPull(a *app) *cobra.Command {
	var flags registryFlags
	var require, repair bool
	cmd := &cobra.Command{
		Use:   "pull REF",
		Short: "Fetch a snapshot from a registry or a file",
		Long: `pull fetches a snapshot into the local store and verifies it. What is there already is not fetched again, and
a pull that was interrupted goes on where it stopped. The base image is left to restore.

With --repair, pull reads the parts that the local store has, and fetches the damaged ones again. Other snapshots that
share a part get the new one too. After cryo verify or a restore has found damage, pull does this without the flag.

Its signatures are fetched too. Where [trust] in the configuration, or --require-signature, asks for one, a
snapshot without a trusted one is refused before anything else of it is read.`,
		Example: `  cryo pull registry.example.com/snapshots/app:warm
  cryo pull registry.example.com/snapshots/app:warm --require-signature
  cryo pull registry.example.com/snapshots/app:warm --repair
  cryo pull oci-archive:/mnt/usb/app.tar`,
		Args: exactly("REF"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			options, err := flags.resolve(ctx, a)
			if err != nil {
				return err
			}
			j, err := a.judging(require)
			if err != nil {
				return err
			}
			options.Repair = repair
			s, err := a.store()
			if err != nil {
				return err
			}
			a.warnHub(args[0])
			a.progress.waitsFor("pull", func() string { return "the registry" })
			pulled, err := restore.Pull(ctx, s, args[0], options, j)
			if err != nil {
				return err
			}
			return a.moved("pulled", movedResult{Reference: pulled.Reference, Digest: pulled.Digest, Transfer: pulled.Transfer})
		},
	}
	cmd.Flags().BoolVar(&repair, "repair", false, "read and verify what is here already, and fetch again what is damaged")
	requireSignature(cmd, &require)
	flags.register(cmd)
	return cmd
}
