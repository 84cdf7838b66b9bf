// Demo moves a running container between two hosts and shows that it went on: "make demo".
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/cryo-project/cryo/integration/lab"
)

const (
	container = "counter"
	memory    = "256" // MiB
)

func main() {
	lab.Main()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		var missing *lab.MissingError
		if errors.As(err, &missing) {
			os.Exit(4)
		}
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	fmt.Println("Starting a registry and two hosts, each a containerd of its own with its own network and files.")
	l, err := lab.Open(ctx, lab.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	registry, err := l.Registry(ctx, "registry", lab.RegistryOptions{})
	if err != nil {
		return err
	}
	first, err := l.Host(ctx, "first", lab.HostOptions{})
	if err != nil {
		return err
	}
	second, err := l.Host(ctx, "second", lab.HostOptions{})
	if err != nil {
		return err
	}
	if err := first.Import(ctx); err != nil {
		return err
	}
	image, err := first.Seed(ctx, registry, lab.ImageName)
	if err != nil {
		return err
	}
	return move(ctx, first, second, image, registry.Reference("snapshots/counter:warm"))
}

// move takes the container from one host to the other and compares.
func move(ctx context.Context, first, second *lab.Host, image, snapshot string) error {
	fmt.Println("\nOn the first host, a container that counts and holds", memory, "MiB of random memory:")
	if err := show(ctx, first, "ctr", "run", "--detach", "--null-io", "--runtime", "io.containerd.cryo.v1",
		image, container, "workload", "count", "--memory", memory); err != nil {
		return err
	}
	if _, err := first.AwaitAnswer(ctx, container); err != nil {
		return err
	}
	before, err := report(ctx, first)
	if err != nil {
		return err
	}

	fmt.Println("\nTake a snapshot of it and push it to the registry; the container ends with that:")
	if err := show(ctx, first, "cryo", "checkpoint", container, snapshot, "--push", "--plain-http"); err != nil {
		return err
	}

	fmt.Println("\nRestore it on the second host, which has neither the snapshot nor the image:")
	if err := show(ctx, second, "cryo", "restore", snapshot, "--plain-http"); err != nil {
		return err
	}
	if _, err := second.AwaitAnswer(ctx, container); err != nil {
		return err
	}
	after, err := report(ctx, second)
	if err != nil {
		return err
	}
	if err := show(ctx, second, "ctr", "tasks", "ls"); err != nil {
		return err
	}

	fmt.Println()
	if after.Count <= before.Count {
		return fmt.Errorf("the count went back from %d to %d", before.Count, after.Count)
	}
	if !after.OK || after.State["sha256"] != before.State["sha256"] {
		return fmt.Errorf("the memory differs: sha256 %v before, %v after", before.State["sha256"], after.State["sha256"])
	}
	fmt.Printf("The count went on: %d on the first host, %d on the second.\n", before.Count, after.Count)
	fmt.Printf("The memory is equal: sha256 %s on both.\n", after.State["sha256"])
	return nil
}

// show prints a command as a person would type it on the host, runs it, and prints its output.
func show(ctx context.Context, h *lab.Host, args ...string) error {
	fmt.Printf("  %s# %s\n", h.Name, strings.Join(args, " "))
	r := h.Run(ctx, args...)
	for line := range strings.Lines(r.Stdout + r.Stderr) {
		fmt.Println(" ", strings.TrimRight(line, "\n"))
	}
	if r.Code != 0 {
		return fmt.Errorf("%s: exit status %d", args[0], r.Code)
	}
	return nil
}

// report asks the container and prints what it says.
func report(ctx context.Context, h *lab.Host) (lab.Answer, error) {
	a, err := h.Ask(ctx, container)
	if err == nil {
		fmt.Printf("  The container says: count %d, memory sha256 %.16s...\n", a.Count, a.State["sha256"])
	}
	return a, err
}
