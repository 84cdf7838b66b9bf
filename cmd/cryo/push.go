package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/cryo-project/cryo/shim/config"
	"github.com/cryo-project/cryo/shim/daemon"
	"github.com/cryo-project/cryo/shim/restore"
	"github.com/cryo-project/cryo/shim/save"
)

type movedResult struct {
	Reference         string `json:"reference"`
	Digest            string `json:"digest"`
	*restore.Transfer        // with a registry; nil: with a file
	*save.Named              // of a push to a registry
}

func newPush(a *app) *cobra.Command {
	var flags registryFlags
	var only bool
	cmd := &cobra.Command{
		Use:   "push REF [DESTINATION]",
		Short: "Send a snapshot to a registry or into a file",
		Long: `push sends a snapshot of the local store to the registry that its reference names, or to DESTINATION: another
reference, an OCI image layout or a tar archive. What is there already is not sent again, so a push that was
interrupted goes on where it stopped when it is repeated.

In a registry the name then also stands for an ordinary image: the layers of the base image, and the changed files on
top. ctr, nerdctl, docker and Kubernetes pull that without the memory, and start it cold; cryo restores the snapshot.
Layers that the registry does not have come from containerd, or from the base image's registry. If they cannot
be had, the snapshot is sent by itself, with a warning. --snapshot-only always does that.`,
		Example: `  cryo push registry.example.com/snapshots/app:warm
  cryo push app:warm localhost:5000/app:warm
  cryo push app:warm oci-archive:/mnt/usb/app.tar`,
		Args:              between(1, "REF", "DESTINATION"),
		ValidArgsFunction: a.completeRefs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			options, err := flags.resolve(ctx, a)
			if err != nil {
				return err
			}
			s, err := a.store()
			if err != nil {
				return err
			}
			to := args[len(args)-1]
			if _, err := s.Resolve(ctx, args[0]); err == nil || len(args) > 1 { // else there is nothing to send
				a.warnHub(to)
			}
			a.progress.waitsFor("push", func() string { return "the registry" })
			pushed, err := save.Push(ctx, s, args[0], to, save.PushOptions{
				Registry: options, SnapshotOnly: only, Containerd: daemon.Options{Address: a.address, Namespace: a.namespace, Trace: true}, Warn: a.warn,
			})
			if err != nil {
				return err
			}
			return a.moved("pushed to", movedResult{to, pushed.Digest, pushed.Transfer, pushed.Named})
		},
	}
	cmd.Flags().BoolVar(&only, "snapshot-only", false, "send the snapshot by itself, without an image that others run")
	flags.register(cmd)
	return cmd
}

// moved prints where a snapshot is now.
func (a *app) moved(verb string, r movedResult) error {
	return a.print(r, func() error {
		how := ""
		if t := r.Transfer; t != nil {
			how = fmt.Sprintf(": %s in %s", config.Size(t.Moved), seconds(t.Seconds))
		}
		a.line("%s %s %s%s", verb, r.Reference, r.Digest, how)
		return nil
	})
}
