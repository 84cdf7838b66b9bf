package shim

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/containerd/v2/pkg/shim"
	containerd "github.com/containerd/containerd/v2/version"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/runtime/guard"
	"github.com/cryo-project/cryo/shim/config"
)

// Name is the runtime's name as containerd knows it. io.containerd.runc.cryo.v1 resolves to the same binary.
const Name = "io.containerd.cryo.v1"

// Run is the shim's main: it serves one of containerd's invocations (start, delete, -v, -info, or the service itself).
func Run(ctx context.Context, version, revision string) {
	if name := filepath.Base(os.Args[0]); name == guard.TarName || name == guard.CRIUName { // by a shim of a release before
		fmt.Fprintf(os.Stderr, "Error (%s): %v\n", name, guard.BecomeGuard(os.Args))
		os.Exit(1)
	}
	// What pkg/shim prints for -v and Info are the variables of containerd's package.
	containerd.Version, containerd.Revision = version, revision
	c, err := config.Load("")
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", Name, err)
		os.Exit(1)
	}
	keepSockets()
	register(c)
	shim.RunShim(ctx, newManager())
}

// keepSockets keeps the sockets that the shim inherits from its start from being inherited by what it starts itself: one of those that
// outlives it would have it look alive. pkg/shim works on duplicates, and leaves the originals to the garbage collector.
func keepSockets() {
	for fd := 3; fd < 10; fd++ {
		unix.CloseOnExec(fd) // there may be none
	}
}
