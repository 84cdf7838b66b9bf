package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// startsPerRound is how often more starts of containers are measured than all else: they are short, and the difference is.
const startsPerRound = 10

// start measures how long "ctr run" takes until a container runs, by both shims in turns.
func (b *bench) start(ctx context.Context) error {
	f := &figure{Case: "start", Subject: "Shims", What: "ctr run --detach", Unit: "s", BesideWhat: "stock shim", Aim: aim{Ratio: 1.05}}
	defer func() { b.report.add(f) }()
	const unmeasured = 2 // the first starts read programs from the disk
	for n := range b.rounds*startsPerRound + unmeasured {
		order := []string{cryoRuntime, stockRuntime}
		if n%2 == 1 {
			order[0], order[1] = order[1], order[0]
		}
		for _, runtime := range order {
			c := b.handle(b.a)
			took, err := b.timed(ctx, b.a, "ctr", "run", "--detach", "--null-io", "--runtime", runtime, lab.ImageName, c.id, "sleep", "3600")
			if err := errors.Join(err, c.remove(ctx)); err != nil {
				return err
			}
			switch {
			case n < unmeasured:
			case runtime == cryoRuntime:
				f.Cryo = append(f.Cryo, took)
			default:
				f.Beside = append(f.Beside, took)
			}
		}
	}
	return nil
}

// restTime is how long a shim has before it is at rest.
const restTime = 5 * time.Second

// idle measures what of a shim's memory is its own, while its container sleeps. Each is the only one of its program.
func (b *bench) idle(ctx context.Context) error {
	f := &figure{Case: "idle", Subject: "Shims", What: fmt.Sprintf("proportional set size after %s", restTime), Unit: "B", BesideWhat: "stock shim", Aim: aim{Ratio: 1.3}}
	defer func() { b.report.add(f) }()
	for range b.rounds {
		for _, runtime := range []string{cryoRuntime, stockRuntime} {
			bytes, err := b.atRest(ctx, runtime)
			if err != nil {
				return err
			}
			if runtime == cryoRuntime {
				f.Cryo = append(f.Cryo, bytes)
			} else {
				f.Beside = append(f.Beside, bytes)
			}
		}
	}
	return nil
}

func (b *bench) atRest(ctx context.Context, runtime string) (bytes float64, err error) {
	c := b.handle(b.a)
	if err := b.a.Ctr(ctx, "run", "--detach", "--null-io", "--runtime", runtime, lab.ImageName, c.id, "sleep", "3600").Err(); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, c.remove(ctx)) }()
	select {
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-time.After(restTime):
	}
	// The shim, and what it may have started to help it.
	for _, pid := range b.a.Processes() {
		proc := filepath.Join("/proc", strconv.Itoa(pid))
		program, err := os.Readlink(filepath.Join(proc, "exe"))
		if err == nil && strings.HasPrefix(filepath.Base(program), "containerd-shim-") {
			bytes += float64(pss(read(filepath.Join(proc, "smaps_rollup"))))
		}
	}
	if bytes == 0 {
		return 0, errors.New("no shim is among the host's processes")
	}
	return bytes, nil
}

// pss is the proportional set size, bytes, of /proc/PID/smaps_rollup. Source: the kernel's Documentation/filesystems/proc.rst.
func pss(rollup string) int64 {
	var kilobytes int64
	for line := range strings.Lines(rollup) {
		if n, _ := fmt.Sscanf(line, "Pss: %d kB", &kilobytes); n == 1 {
			break
		}
	}
	return kilobytes << 10
}
