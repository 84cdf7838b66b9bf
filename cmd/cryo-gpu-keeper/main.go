//go:build cgo

// Command cryo-gpu-keeper asks NVIDIA's driver to take the device memory of processes into their host memory and back, or holds it
// for them. The shim and cryo start it; see packages runtime/gpu/driver and runtime/gpu/keeper for the protocols it speaks. It is a
// program of its own because the driver's library must be opened in one, and because it undoes what it did when the one who
// started it dies.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/runtime/gpu/driver"
)

// Set by the linker.
var (
	version  = "0.1.0-dev"
	revision = "unknown"
)

const usage = `cryo-gpu-keeper asks NVIDIA's driver for what cryo needs of it.

  cryo-gpu-keeper facts    print devices, what processes hold on them, and versions, as JSON
  cryo-gpu-keeper driver   answer the shim's requests, until standard input ends; then undo what is to be undone
  cryo-gpu-keeper keeper   keep and move device memory as the shim asks for on descriptor 3, until that hangs up
  cryo-gpu-keeper --version | --help

It exits with 1 where the driver cannot be used, or where something could not be undone.
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
		err = driver.PrintFacts(stdout, openDriver)
	case "driver":
		prepare()
		ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
		defer stop()
		// A client that died must not end the undoing by a closed pipe.
		signal.Ignore(unix.SIGPIPE)
		err = driver.Serve(ctx, os.Stdin, stdout, openDriver)
	case "keeper":
		prepare()
		ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
		defer stop()
		signal.Ignore(unix.SIGPIPE)
		err = hold(ctx)
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

// prepare unsets the variable that would hide devices from the helper. The processes of containers have variables of their own.
func prepare() { os.Unsetenv("CUDA_VISIBLE_DEVICES") }
