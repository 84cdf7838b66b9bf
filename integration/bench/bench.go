package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/integration/lab"
)

// bench is two hosts and a registry.
type bench struct {
	settings
	report   *report
	lab      *lab.Lab
	a, b     *lab.Host // a snapshot is taken on the first; the second has none until it fetches it
	registry *lab.Registry
	memory   string        // a tmpfs, mounted on both
	way      time.Duration // that a command takes to get into a host
	peaks    *peaks
	started  int // containers, so far
}

func open(ctx context.Context, s settings, p *report) (*bench, error) {
	b := &bench{settings: s, report: p}
	var err error
	if b.lab, err = lab.Open(ctx, lab.Options{Dir: s.store}); err != nil {
		return nil, err
	}
	if err := b.boot(ctx); err != nil {
		return nil, errors.Join(err, b.close())
	}
	return b, nil
}

func (b *bench) boot(ctx context.Context) (err error) {
	b.report.Machine = readMachine(ctx, b.lab)
	// Before the hosts, which take the mounts there are. The lab unmounts what is left below its directory.
	b.memory = filepath.Join(b.lab.Dir, "memory")
	if err := os.Mkdir(b.memory, 0o700); err != nil {
		return err
	}
	if err := unix.Mount("bench", b.memory, "tmpfs", 0, "size=90%,mode=0700"); err != nil {
		return os.NewSyscallError("mount tmpfs", err)
	}
	if b.registry, err = b.lab.Registry(ctx, "registry", lab.RegistryOptions{AnyIndex: true}); err != nil {
		return err
	}
	if b.a, err = b.lab.Host(ctx, "a", lab.HostOptions{}); err != nil {
		return err
	}
	if b.b, err = b.lab.Host(ctx, "b", lab.HostOptions{}); err != nil {
		return err
	}
	for _, h := range []*lab.Host{b.a, b.b} {
		if err := h.Import(ctx); err != nil {
			return err
		}
	}
	var way []float64
	for range 9 {
		way = append(way, b.a.Run(ctx, "true").Elapsed.Seconds())
	}
	middle, _ := spreadOf(way)
	b.way = time.Duration(middle.median * float64(time.Second))
	b.peaks = watch(b.a, b.b)
	return nil
}

// tidy removes what a case has left.
func (b *bench) tidy(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Minute)
	defer cancel()
	for _, h := range []*lab.Host{b.a, b.b} {
		if err := empty(ctx, h); err != nil {
			return err
		}
		for _, leak := range h.Leaks() {
			b.report.warn("left behind on %s: %s", h.Name, leak)
		}
	}
	entries, err := os.ReadDir(b.memory)
	for _, e := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(b.memory, e.Name())))
	}
	return errors.Join(err, b.emptyRegistry(ctx))
}

func (b *bench) close() error {
	if b.peaks != nil {
		b.peaks.stop()
	}
	return b.lab.Close()
}
