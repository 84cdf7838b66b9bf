// Command cryo takes snapshots of running containers, keeps and moves them as OCI artifacts, and restores them on this
// or another host. Run it without arguments for its subcommands, and `cryo help exit-codes` for what its exit codes mean.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/sandbox"
	"github.com/cryo-project/cryo/runtime/gpu/prewarmed"
	"github.com/cryo-project/cryo/shim/restore"
	"github.com/cryo-project/cryo/shim/restorer"
	"github.com/cryo-project/cryo/shim/take"
	"github.com/cryo-project/cryo/shim/taker"
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == prewarmed.Command {
		if err := prewarmed.Serve(); err != nil {
			fmt.Fprintln(os.Stderr, "cryo:", err)
			os.Exit(exitOther)
		}
		return
	}
	if len(os.Args) == 2 && os.Args[1] == sandbox.Command {
		os.Exit(sandbox.Main())
	}
	if len(os.Args) == 2 && os.Args[1] == restorer.Command {
		if err := serveShim(); err != nil {
			fmt.Fprintln(os.Stderr, "cryo:", err)
			os.Exit(exitOther)
		}
		return
	}
	if len(os.Args) == 2 && os.Args[1] == taker.Command {
		if err := takeForShim(); err != nil {
			fmt.Fprintln(os.Stderr, "cryo:", err)
			os.Exit(exitOther)
		}
		return
	}
	ctx, cancel := interruptible(context.Background())
	a := &app{program: "/proc/self/exe", stdout: os.Stdout, stderr: os.Stderr} // this program itself, also when an update has replaced its file
	code := a.run(ctx, os.Args[1:])
	cancel()
	os.Exit(code)
}

// serveShim is the restore process of a shim, which says what is to be done.
func serveShim() error {
	a := &app{root: os.Getenv("CRYO_ROOT")}
	c, err := a.config()
	if err != nil {
		return err
	}
	return restore.Serve(c)
}

// takeForShim is the checkpoint process of a shim, which says what is to be done.
func takeForShim() error {
	a := &app{root: os.Getenv("CRYO_ROOT")}
	c, err := a.config()
	if err != nil {
		return err
	}
	return take.Serve(context.Background(), c)
}

// interruptible gives a context that SIGINT and SIGTERM cancel with [errInterrupted]. Undoing then runs to its end; who
// cannot wait sends the signal again.
func interruptible(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM)
	go func() {
		select {
		case <-signals:
			cancel(errInterrupted)
			signal.Stop(signals)
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		cancel(nil)
	}
}
