package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// newExitCodes is a help topic: cobra lists commands that do not run under "additional help topics".
func newExitCodes() *cobra.Command {
	var b strings.Builder
	b.WriteString("cryo ends with one of these exit codes:\n\n")
	byCode := slices.SortedFunc(slices.Values(exitTable), func(a, b exit) int { return a.code - b.code })
	for _, e := range byCode {
		fmt.Fprintf(&b, "  %3d  %-12s  %s\n", e.code, e.kind, e.meaning)
	}
	b.WriteString("\nWhat went wrong is on standard error, as \"cryo: ...\", and what to do about it as \"hint: ...\".\n" +
		"With --json, standard output has it too: \"error\" with kind, as above, message, hint and exitCode, and with the\n" +
		"container and what is left of it, where that is known.")
	return &cobra.Command{Use: "exit-codes", Short: "What the exit codes mean", Long: b.String()}
}

func newReferences() *cobra.Command {
	return &cobra.Command{
		Use:   "references",
		Short: "How snapshots are named",
		Long: `A snapshot in the local store or in a registry is named as an image is: [HOST[:PORT]/]PATH[:TAG]. Without a host
docker.io is meant, without a tag latest. In the local store the manifest's digest (sha256:...) names it too, as does
the beginning of the digest, from four digits on. A warning says so before docker.io is asked for a name without a
host.

As files, snapshots are named as skopeo names images:

  oci:DIRECTORY[:TAG]      an OCI image layout
  oci-archive:FILE[:TAG]   a tar archive of one

push, pull and restore take these in the place of a registry's reference:

  cryo push app:warm oci-archive:/mnt/usb/app.tar
  cryo pull oci-archive:/mnt/usb/app.tar`,
	}
}
