// Command cryo takes snapshots of running containers, keeps and moves them as OCI artifacts, and restores them on this
// or another host. Run it without arguments for its subcommands, and `cryo help exit-codes` for what its exit codes mean.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/runtime/gpu"
	"github.com/cryo-project/cryo/runtime/host"
	"github.com/cryo-project/cryo/shim/config"
	"github.com/cryo-project/cryo/shim/restore"
	"github.com/cryo-project/cryo/shim/save"
	"github.com/cryo-project/cryo/shim/worker"
)

func main() {
	host.CollectLater()
	if len(os.Args) == 2 {
		serve(os.Args[1])
	}
	ctx, cancel := interruptible(context.Background())
	a := &app{stdout: os.Stdout, stderr: os.Stderr}
	code := a.run(ctx, os.Args[1:])
	cancel()
	os.Exit(code)
}

// serve is for the processes that other processes of cryo's start by one argument. It does not return from these.
func serve(command string) {
	configured := func(do func(config.Config) error) error {
		c, err := (&app{root: os.Getenv("CRYO_ROOT")}).config()
		if err != nil {
			return err
		}
		return do(c)
	}
	var err error
	switch command {
	case gpu.PrewarmedCommand:
		err = gpu.ServePrewarmed()
	case worker.Command:
		err = configured(restore.Serve)
	case worker.CheckpointCommand:
		err = configured(save.Serve)
	default:
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "cryo:", err)
		os.Exit(exitOther)
	}
	os.Exit(exitOK)
}

// interruptible returns a context that SIGINT and SIGTERM cancel with [errInterrupted]. Undoing then runs to its end; who
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
