package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// watched are the things that may not grow from checkpoint to checkpoint. By how much they may be more at the end than at first without having grown
// is theirs: a busy process's memory comes and goes.
var watched = []struct {
	what  string
	bound int64
}{
	{"descriptors of the shim", 8},
	{"threads of the shim", 8},
	{"memory of the shim", 32 << 20},
	{"descriptors of the process", 8},
	{"threads of the process", 4},
	{"mappings of the process", 256},
	{"memory of the process", 96 << 20},
	{deviceMemory, 160 << 20},
}

const deviceMemory = "device memory of the process"

// warming is how many cycles come before the first that counts: libraries load what they need, and caches fill.
const warming = 2

// growth is what was seen of all that is watched, in order.
type growth map[string][]int64

// grown is a line of the report.
type grown struct {
	When  string `json:"when"`
	What  string `json:"what"`
	First int64  `json:"first"`
	Last  int64  `json:"last"`
	Most  int64  `json:"most"`
	Seen  int    `json:"seen"` // how often it was looked at
}

func (g *growth) add(what string, n int64) {
	if *g == nil {
		*g = growth{}
	}
	(*g)[what] = append((*g)[what], n)
}

// verdict writes down what was seen, and gives what has grown beyond its bound: even the least of the last quarter is more than the
// most of the first.
func (g growth) verdict(r *result, when string) (beyond []string) {
	for _, w := range watched {
		seen := g[w.what]
		if len(seen) == 0 {
			continue
		}
		r.Growth = append(r.Growth, grown{when, w.what, seen[0], seen[len(seen)-1], slices.Max(seen), len(seen)})
		quarter := (len(seen) + 3) / 4
		first, last := slices.Max(seen[:quarter]), slices.Min(seen[len(seen)-quarter:])
		if len(seen) > 1 && last > first+w.bound {
			beyond = append(beyond, fmt.Sprintf("%s, %s: from %d at most to %d at least", w.what, when, first, last))
		}
	}
	return beyond
}

// look looks at the container's shim and process after cycle n, and every tenth time at the device.
func (b *bench) look(ctx context.Context, g *growth, c *container, n int) error {
	if n < warming {
		return nil
	}
	pid, _, err := b.a.Task(ctx, c.id)
	if err != nil {
		return err
	}
	const name = "containerd-shim" // 15 characters of it
	shim := find(b.a, func(p process) bool { return p.name == name && strings.Contains(p.line, "cryo") })
	for _, p := range []struct {
		name string
		pid  int
	}{{"shim", shim}, {"process", pid}} {
		if p.pid == 0 {
			return fmt.Errorf("the %s of %s was not found", p.name, c.id)
		}
		u, err := used(p.pid)
		if err != nil {
			return fmt.Errorf("look at the %s: %w", p.name, err)
		}
		g.add("descriptors of the "+p.name, u.descriptors)
		g.add("threads of the "+p.name, u.threads)
		g.add("mappings of the "+p.name, u.mappings)
		g.add("memory of the "+p.name, u.memory)
	}
	if (n-warming)%10 != 0 {
		return nil
	}
	return b.device(ctx, g, pid)
}

// lookAtDevice does so once more at the end, unless the last cycle has.
func (b *bench) lookAtDevice(ctx context.Context, g *growth, c *container, n int) error {
	if n < warming || (n-warming)%10 == 0 {
		return nil
	}
	pid, _, err := b.a.Task(ctx, c.id)
	if err != nil {
		return err
	}
	return b.device(ctx, g, pid)
}

// device asks NVML what a process has.
func (b *bench) device(ctx context.Context, g *growth, pid int) error {
	facts, err := b.facts(ctx)
	if err != nil {
		return err
	}
	var bytes int64
	for _, u := range facts.Uses {
		if u.PID == pid {
			bytes += u.Memory
		}
	}
	g.add(deviceMemory, bytes)
	return nil
}

// use is what a process has of its host; memory is what is resident, bytes.
type use struct{ descriptors, threads, mappings, memory int64 }

func used(pid int) (u use, err error) {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	open, err := os.ReadDir(filepath.Join(dir, "fd"))
	if err != nil {
		return u, err
	}
	for _, f := range open {
		// Go closes those of children that have been waited for when it next collects garbage.
		if target, _ := os.Readlink(filepath.Join(dir, "fd", f.Name())); target != "anon_inode:[pidfd]" {
			u.descriptors++
		}
	}
	threads, err := os.ReadDir(filepath.Join(dir, "task"))
	if err != nil {
		return u, err
	}
	maps, err := os.ReadFile(filepath.Join(dir, "maps"))
	if err != nil {
		return u, err
	}
	statm, err := os.ReadFile(filepath.Join(dir, "statm"))
	if err != nil {
		return u, err
	}
	fields := strings.Fields(string(statm))
	if len(fields) < 2 {
		return u, fmt.Errorf("read %s/statm: %q", dir, statm)
	}
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	u.threads, u.mappings, u.memory = int64(len(threads)), int64(strings.Count(string(maps), "\n")), pages*int64(os.Getpagesize())
	return u, err
}
