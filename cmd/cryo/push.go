package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/cryo-project/cryo/image/archive"
	"github.com/cryo-project/cryo/image/registry"
	"github.com/cryo-project/cryo/shim/job"
	"github.com/cryo-project/cryo/shim/size"
)

type movedResult struct {
	Reference string `json:"reference"`
	Digest    string `json:"digest"`
	*transfer        // with a registry
}

func newPush(a *app) *cobra.Command {
	var flags registryFlags
	cmd := &cobra.Command{
		Use:   "push REF [DESTINATION]",
		Short: "Send a snapshot to a registry or into a file",
		Long: `push sends a snapshot of the local store to the registry that its reference names, or to DESTINATION: another
reference, an OCI image layout or a tar archive. What is there already is not sent again, so a push that was
interrupted goes on where it stopped when it is repeated.`,
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
			s, op, desc, err := a.keep(ctx, args[0])
			if err != nil {
				return err
			}
			defer closing(ctx, "operation", op)
			to := args[len(args)-1]
			a.warnHub(to)
			var counts registry.Counts
			options.Counts = &counts
			a.progress.waitsFor("push", func() string { return "the registry" })
			start := time.Now()
			if archive.IsLocation(to) {
				err = archive.Export(ctx, s, desc, args[0], to)
			} else {
				err = registry.Push(ctx, s, to, desc, options)
			}
			if err != nil {
				return err
			}
			return a.moved("pushed to", to, desc.Digest.String(), transferred(to, &counts, start))
		},
	}
	flags.register(cmd)
	return cmd
}

// transfer is what moving a snapshot came to.
type transfer = job.Transfer

// transferred gives nothing where ref is a file: what goes into files is not counted.
func transferred(ref string, c *registry.Counts, start time.Time) *transfer {
	if archive.IsLocation(ref) {
		return nil
	}
	return job.Transferred(c, start)
}

// moved prints where a snapshot is now.
func (a *app) moved(verb, ref, digest string, t *transfer) error {
	a.progress.stop()
	if a.json {
		return a.printJSON(movedResult{Reference: ref, Digest: digest, transfer: t})
	}
	if t == nil {
		a.line("%s %s %s", verb, ref, digest)
	} else {
		a.line("%s %s %s: %s in %s", verb, ref, digest, size.Of(t.Moved), seconds(t.Seconds))
	}
	return nil
}
