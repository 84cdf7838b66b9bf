package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/integration/lab"
)

// timed runs a command on a host and gives its seconds, without those that it takes to get there.
func (b *bench) timed(ctx context.Context, h *lab.Host, args ...string) (float64, error) {
	r := h.Run(ctx, args...)
	return (r.Elapsed - b.way).Seconds(), r.Err()
}

// taken is what "cryo checkpoint --json" says.
type taken struct {
	Size   int64   `json:"size"`
	Freeze float64 `json:"freeze"`
}

// checkpoint runs cryo checkpoint.
func (b *bench) checkpoint(ctx context.Context, c *container, ref string, flags ...string) (t taken, seconds float64, err error) {
	r := c.host.Cryo(ctx, append([]string{"--json", "checkpoint", c.id, ref}, flags...)...)
	if err := r.Err(); err != nil {
		return t, 0, err
	}
	if err := json.Unmarshal([]byte(r.Stdout), &t); err != nil {
		return t, 0, fmt.Errorf("read what cryo checkpoint says: %w", err)
	}
	return t, (r.Elapsed - b.way).Seconds(), nil
}

// settle writes out what the file system of the lab still has to write, so that nobody pays for others.
func (b *bench) settle() error {
	d, err := os.Open(b.lab.Dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return os.NewSyscallError("syncfs", unix.Syncfs(int(d.Fd())))
}

// empty removes all snapshots of a host, cryo's and containerd's.
func empty(ctx context.Context, h *lab.Host) error {
	r := h.Cryo(ctx, "ls", "--quiet")
	if refs := strings.Fields(r.Stdout); r.Code == 0 && len(refs) > 0 {
		r = h.Cryo(ctx, append([]string{"rm"}, refs...)...)
	}
	if err := r.Err(); err != nil {
		return err
	}
	r = h.Ctr(ctx, "images", "ls", "--quiet")
	for _, ref := range strings.Fields(r.Stdout) {
		if ref != lab.ImageName {
			r = h.Ctr(ctx, "images", "rm", "--sync", ref)
		}
	}
	return r.Err()
}

// emptyRegistry removes everything from the registry.
func (b *bench) emptyRegistry(ctx context.Context) error {
	if err := b.registry.Stop(); err != nil {
		return err
	}
	if err := os.RemoveAll(filepath.Join(b.registry.Dir, "data")); err != nil {
		return fmt.Errorf("empty the registry: %w", err)
	}
	return b.registry.Start(ctx)
}

// stored is how many bytes the files below a directory have.
func stored(dir string) (total int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			total += info.Size()
		}
		return err
	})
	return total, err
}

// available is how much memory there is, bytes. Source: proc_meminfo(5).
func available() int64 {
	var kilobytes int64
	for line := range strings.Lines(read("/proc/meminfo")) {
		if n, _ := fmt.Sscanf(line, "MemAvailable: %d kB", &kilobytes); n == 1 {
			break
		}
	}
	return kilobytes << 10
}
