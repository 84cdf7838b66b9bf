//go:build cgo

// Command cryo-gpu-keeper asks NVIDIA's driver to take the device memory of processes into their host memory and back, or holds it
// for them. The shim and cryo start it; see package runtime/gpu/device for the protocols it speaks. It is a
// program of its own because the driver's library must be opened in one.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/runtime/channel"
	"github.com/cryo-project/cryo/runtime/gpu/device"
)

// Set by the linker.
var (
	version  = "0.1.0-dev"
	revision = "unknown"
)

const usage = `cryo-gpu-keeper asks NVIDIA's driver for what cryo needs of it.

  cryo-gpu-keeper facts    print devices, what processes hold on them, and versions, as JSON
  cryo-gpu-keeper driver   answer the shim's requests on descriptor 3, until that hangs up
  cryo-gpu-keeper keeper   keep and move device memory as the shim asks for on descriptor 3, until that hangs up
  cryo-gpu-keeper --version | --help

It exits with 1 where the driver cannot be used.
`

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	if len(args) != 1 {
		fmt.Fprint(stderr, usage)
		return 2
	}
	var err error
	switch args[0] {
	case "--help", "-h", "help":
		fmt.Fprint(stdout, usage)
	case "--version", "version":
		fmt.Fprintf(stdout, "cryo-gpu-keeper %s, %s, %s/%s\ncommit %s\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH, revision)
	case "facts":
		prepare()
		err = device.PrintFacts(stdout, openDriver)
	case "driver":
		prepare()
		err = serve(func(ctx context.Context, c *channel.Channel) error { return device.ServeHelper(ctx, c, openDriver) })
	case "keeper":
		prepare()
		soon()
		err = serve(hold)
	default:
		fmt.Fprint(stderr, usage)
		return 2
	}
	if err != nil {
		fmt.Fprintln(stderr, "cryo-gpu-keeper:", err)
		return 1
	}
	return 0
}

// serveDescriptor is the shim's socket.
const serveDescriptor = 3

// serve does what the shim asks for.
func serve(do func(context.Context, *channel.Channel) error) error {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
	defer stop()
	signal.Ignore(unix.SIGPIPE) // of a shim that has died
	// Descriptor 3 of a user who runs it by hand may be any.
	if kind, err := unix.GetsockoptInt(serveDescriptor, unix.SOL_SOCKET, unix.SO_TYPE); err != nil || kind != unix.SOCK_SEQPACKET {
		return fmt.Errorf("serve: descriptor %d is not the shim's: %w", serveDescriptor, errdefs.ErrInvalidArgument)
	}
	c, err := channel.Open(serveDescriptor)
	if err != nil {
		return err
	}
	return do(ctx, c)
}

// prepare unsets the variable that would hide devices from the helper. The processes of containers have variables of their own.
func prepare() { os.Unsetenv("CUDA_VISIBLE_DEVICES") }
