package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// runtimeName is cryo's runtime as containerd knows it.
const runtimeName = "io.containerd.cryo.v1"

// bench is two hosts and a registry, with GPUs by CDI.
type bench struct {
	settings
	machine  machine
	lab      *lab.Lab
	a, b     *lab.Host // a snapshot is taken on the first and restored on the second
	registry *lab.Registry
	image    string            // reference of the base image in the registry
	mounts   []string          // flags of ctr: this machine's programs and libraries
	env      []string          // flags of ctr
	cdi      []byte            // CDI specification, nil without GPUs
	saved    map[string]string // ends of logs of hosts that are gone
	started  int               // hosts, so far
	asked    int64             // questions, so far
	touched  int64             // bytes of host memory that a case has needed so far at most, and that were touched for it
}

// open makes hosts, registry and image. Where it fails it gives as much as there is, for the report and for close.
func open(ctx context.Context, s settings, gpus bool) (*bench, error) {
	b := &bench{settings: s, saved: map[string]string{}}
	b.machine = readMachine(ctx)
	add, err := os.MkdirTemp("", "cryo-gpu-image-")
	if err != nil {
		return b, err
	}
	defer os.RemoveAll(add)
	if err := b.furnish(add); err != nil {
		return b, err
	}
	if b.lab, err = lab.Open(ctx, lab.Options{Dir: s.store, Add: add}); err != nil {
		return b, err
	}
	b.machine.readVersions(ctx, b.lab)
	if b.registry, err = b.lab.Registry(ctx, "registry", lab.RegistryOptions{}); err != nil {
		return b, err
	}
	if err := b.boot(ctx); err != nil {
		return b, err
	}
	if gpus && len(b.machine.GPUs) > 0 {
		if err := b.settle(ctx); err != nil {
			return b, err
		}
	}
	doctor := b.a.Cryo(ctx, "doctor")
	b.machine.Doctor = doctor.Stdout + doctor.Stderr
	return b, nil
}

// boot starts both hosts, and puts the base image on the first and in the registry.
func (b *bench) boot(ctx context.Context) (err error) {
	b.started++
	var env []string
	if path := os.Getenv("LD_LIBRARY_PATH"); path != "" { // the driver's libraries may be found by it
		env = []string{"LD_LIBRARY_PATH=" + path}
	}
	for _, h := range []struct {
		host **lab.Host
		name string
	}{{&b.a, "a"}, {&b.b, "b"}} {
		name := fmt.Sprintf("%s%d", h.name, b.started)
		if *h.host, err = b.lab.Host(ctx, name, lab.HostOptions{Env: env, CryoConfig: "[gpu]\nengine = \"driver\"\n"}); err != nil {
			return err
		}
		if err := b.putCDI(*h.host); err != nil {
			return err
		}
	}
	if err := b.a.Import(ctx); err != nil {
		return err
	}
	b.image, err = b.a.Seed(ctx, b.registry, lab.ImageName)
	return err
}

// tidy removes what a case has left in the stores and the registry, which lie in memory, and makes new hosts after a failure.
func (b *bench) tidy(ctx context.Context, r *result) error {
	var errs []error
	if r.Verdict == failed {
		for _, h := range []*lab.Host{b.a, b.b} {
			if h == nil {
				continue
			}
			// What cannot be ended must not keep others from being started.
			errs = append(errs, h.Close(), os.RemoveAll(h.Dir))
		}
		b.a, b.b = nil, nil
	}
	if err := b.registry.Stop(); err != nil {
		return err
	}
	if err := os.RemoveAll(filepath.Join(b.registry.Dir, "data")); err != nil {
		return fmt.Errorf("empty the registry: %w", err)
	}
	if err := b.registry.Start(ctx); err != nil {
		return err
	}
	if b.a == nil || b.b == nil {
		return errors.Join(append(errs, b.boot(ctx))...)
	}
	for _, h := range []*lab.Host{b.a, b.b} {
		for _, leak := range h.Leaks() {
			errs = append(errs, fmt.Errorf("left behind on %s: %s", h.Name, leak))
		}
	}
	_, err := b.a.Seed(ctx, b.registry, lab.ImageName)
	return errors.Join(append(errs, err)...)
}

// closeTime bounds how long the lab may take to end. What is left then is ended by its reaper.
const closeTime = 45 * time.Second

// close ends everything, and keeps the hosts' logs.
func (b *bench) close() error {
	if b.lab == nil {
		return nil
	}
	for name, text := range b.evidence("") {
		b.saved[name] = text
	}
	logs := filepath.Join(b.out, "logs")
	if err := os.MkdirAll(logs, 0o755); err != nil {
		return err
	}
	for name, text := range b.saved {
		if err := os.WriteFile(filepath.Join(logs, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	closed := make(chan error, 1)
	go func() { closed <- b.lab.Close() }()
	select {
	case err := <-closed:
		return err
	case <-time.After(closeTime):
		return fmt.Errorf("the lab did not end within %s", closeTime)
	}
}

// evidence is the ends of all logs there are; those of a case are kept under its name as well.
func (b *bench) evidence(name string) map[string]string {
	found := map[string]string{}
	for _, h := range []*lab.Host{b.a, b.b} {
		if h == nil {
			continue
		}
		paths := []string{h.Log()}
		for _, pattern := range []string{"logs/*", "run/containerd/io.containerd.runtime.v2.task/default/*/criu-*.log", "run/containerd/io.containerd.runtime.v2.task/default/*/work/*.log"} {
			more, _ := filepath.Glob(filepath.Join(h.Dir, pattern)) // the patterns are well formed
			paths = append(paths, more...)
		}
		for _, path := range paths {
			relative := strings.ReplaceAll(strings.TrimPrefix(path, h.Dir+"/"), "/", "_")
			if name == "" || path == h.Log() || strings.Contains(path, name) {
				found[h.Name+"_"+relative] = end(path, 12000)
			}
			if name != "" && path == h.Log() {
				b.saved["failed-"+name+"_"+h.Name+"_"+relative] = end(path, 1<<20)
			}
		}
	}
	return found
}

// end is the last bytes of a file; why it cannot be read, otherwise.
func end(path string, n int64) string {
	f, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	if size, err := f.Seek(0, io.SeekEnd); err == nil {
		_, _ = f.Seek(max(0, size-n), io.SeekStart) // both are within the file
	}
	text, err := io.ReadAll(f)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// command runs a program of this machine, outside of the hosts.
func command(ctx context.Context, name string, args ...string) lab.Result {
	return lab.Finish(exec.CommandContext(ctx, name, args...))
}
