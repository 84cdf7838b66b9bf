// containerd-shim-cryo-v1 is containerd's runtime io.containerd.cryo.v1: runc with snapshots. containerd starts it; see
// package shim for what it does, and shim/config for its configuration file.
package main

import (
	"context"

	"github.com/cryo-project/cryo/shim"
)

// Set by the linker.
var (
	version  = "0.1.0-dev"
	revision = "unknown"
)

func main() {
	shim.Run(context.Background(), version, revision)
}
