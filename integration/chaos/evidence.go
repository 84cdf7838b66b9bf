package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/cryo-project/cryo/integration/lab"
)

// contains tells whether a file has a text in it.
func contains(path, text string) bool {
	content, err := os.ReadFile(path)
	return err == nil && bytes.Contains(content, []byte(text))
}

// keep writes down what a round has done and what the hosts are like now, before anything is cleared away.
func (r *round) keep(ctx context.Context, dir string) (string, error) {
	dir = filepath.Join(dir, fmt.Sprintf("seed-%d-round-%d", r.choice.Seed, r.choice.Round))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return dir, err
	}
	errs := []error{os.WriteFile(filepath.Join(dir, "round.txt"), []byte(r.choice.String()+"\n"+r.text()+"\nbefore:\n"+strings.Join(r.before, "\n")+"\n"), 0o644)}
	for path, from := range r.logs {
		errs = append(errs, copyFrom(path, from, filepath.Join(dir, filepath.Base(filepath.Dir(path))+"-"+filepath.Base(path))))
	}
	for _, h := range []*lab.Host{r.world.a, r.world.b} {
		errs = append(errs, os.WriteFile(filepath.Join(dir, "host-"+h.Name+".txt"), []byte(portrait(ctx, h)), 0o644))
		for _, pattern := range []string{"cryo/work/*/*/*.log", "cryo/work/*/*.json", "run/containerd/io.containerd.runtime.v2.task/*/*/*/*.log",
			"run/containerd/io.containerd.runtime.v2.task/*/*/*.json", "run/containerd/io.containerd.runtime.v2.task/*/*/cryo*"} {
			paths, _ := filepath.Glob(filepath.Join(h.Dir, pattern)) // the patterns are well formed
			for _, path := range paths {
				if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Size() < 4<<20 {
					name := strings.ReplaceAll(strings.TrimPrefix(path, h.Dir+"/"), "/", "_")
					errs = append(errs, copyFrom(path, 0, filepath.Join(dir, h.Name+"_"+name)))
				}
			}
		}
	}
	return dir, errors.Join(errs...)
}

// portrait is all of a host that a reader would ask for.
func portrait(ctx context.Context, h *lab.Host) string {
	var b strings.Builder
	for _, words := range [][]string{{"ctr", "tasks", "ls"}, {"ctr", "containers", "ls"}, {"ctr", "leases", "ls"}, {"cryo", "ls"}, {"cryo", "prewarm", "ls"}} {
		r := h.Run(ctx, words...)
		fmt.Fprintf(&b, "$ %s (%d)\n%s%s\n", strings.Join(words, " "), r.Code, r.Stdout, r.Stderr)
	}
	lines, err := h.Trace(ctx)
	fmt.Fprintf(&b, "trace (%v):\n%s\n\nprocesses:\n", err, strings.Join(lines, "\n"))
	for _, p := range h.Running() {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.PID))
		stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID))
		stack, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stack", p.PID))
		fmt.Fprintf(&b, "%d %s: %s\n%s%s\n", p.PID, p.Command, bytes.ReplaceAll(line, []byte{0}, []byte{' '}), stat, stack)
	}
	return b.String()
}

// copyFrom copies a file from an offset on.
func copyFrom(path string, from int64, to string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Seek(from, io.SeekStart); err != nil {
		return err
	}
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, f)
	return errors.Join(err, out.Close())
}
