package shim

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/containerd/v2/pkg/shim"
	containerd "github.com/containerd/containerd/v2/version"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/trust"
	"github.com/cryo-project/cryo/runtime/guard"
	"github.com/cryo-project/cryo/shim/config"
)

// Name is the runtime's name as containerd knows it. io.containerd.runc.cryo.v1 resolves to the same binary.
const Name = "io.containerd.cryo.v1"

// Run is the shim's main: it serves one of containerd's invocations (start, delete, -v, -info, or the service itself),
// reviews CRIU's images, or stands in for CRIU or its tar.
func Run(ctx context.Context, version, revision string) {
	switch filepath.Base(os.Args[0]) {
	case guard.TarName:
		os.Exit(guard.TarMain(os.Args))
	case guard.CRIUName:
		os.Exit(guard.ConfineMain(os.Args))
	}
	if len(os.Args) == 2 && os.Args[1] == trust.ReviewCommand {
		os.Exit(trust.ReviewMain())
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
