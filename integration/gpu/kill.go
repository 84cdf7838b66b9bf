package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// victim is a process that is killed during a checkpoint: the first for which is holds, after a while.
type victim struct {
	name  string
	is    func(process) bool
	after time.Duration // since it was there
	// gone, if set, is a process that must have come and gone before.
	gone func(process) bool
}

func runKill(ctx context.Context, b *bench, r *result) error {
	c := b.container(r.Case, "/gpu/app", "--gib", "6", "--pattern", "regular")
	serves := func(p process) bool {
		return p.name == "cryo-gpu-keeper" && strings.HasSuffix(strings.TrimSpace(p.line), " driver")
	}
	return b.killed(ctx, r, c, []victim{
		{"cryo while the driver saves", takes, 1500 * time.Millisecond, nil},
		{"cryo while CRIU dumps", takes, 200 * time.Millisecond, dumps},
		{"the helper while the driver saves", serves, 1500 * time.Millisecond, nil},
		{"the helper after the dump", serves, 300 * time.Millisecond, dumps},
		{"CRIU", dumps, 400 * time.Millisecond, nil},
	})
}

func runShellKill(ctx context.Context, b *bench, r *result) error {
	return b.killed(ctx, r, b.shell(r), []victim{{"cryo", takes, 50 * time.Millisecond, nil}, {"CRIU", dumps, 0, nil}})
}

func takes(p process) bool {
	return p.name == "cryo" && strings.Contains(p.line, "checkpoint") && !strings.HasPrefix(p.line, "nsenter")
}

// dumps tells whether it is CRIU, which calls itself so while it dumps.
func dumps(p process) bool { return p.name == "criu" && strings.HasPrefix(p.line, "criu: dump") }

// killed takes a checkpoint for each victim, and wants the container to go on as if nothing had been. The last checkpoint is left alone.
func (b *bench) killed(ctx context.Context, r *result, c *container, victims []victim) error {
	defer b.clear(ctx, c)
	if err := c.start(ctx); err != nil {
		return err
	}
	for _, v := range victims {
		// It may be over before the victim is found: some live for moments only.
		err := errOver
		for try := 0; try < 3 && errors.Is(err, errOver); try++ {
			err = b.kill(ctx, r, c, v)
		}
		if errors.Is(err, errOver) {
			r.checked("%s: was never met", v.name)
		} else if err != nil {
			return fmt.Errorf("%s: %w", v.name, err)
		}
	}
	_, err := b.leaveRunning(ctx, r, c, "live")
	return err
}

// errOver says that there was nobody to kill any more.
var errOver = errors.New("the checkpoint was over before")

func (b *bench) kill(ctx context.Context, r *result, c *container, v victim) error {
	ref := b.registry.Reference("gpu/" + c.id + ":live")
	ended := make(chan lab.Result, 1)
	go func() { ended <- b.a.Cryo(ctx, "checkpoint", c.id, ref, "--leave-running") }()
	hit, err := v.strike(ctx, b.a, ended)
	run := <-ended
	if err != nil {
		b.a.Cryo(ctx, "rm", ref) // it may not be there
		return fmt.Errorf("%w: %s", err, run.Stderr)
	}
	r.said(fmt.Sprintf("killed: %s (process %d); cryo checkpoint exited with %d", v.name, hit, run.Code), run.Stderr)
	if _, err := c.check(ctx, b.a, r, "killed "+v.name); err != nil {
		return err
	}
	if run.Code == 0 {
		if err := b.a.Cryo(ctx, "rm", ref).Err(); err != nil {
			return err
		}
	}
	return alone(ctx, b.a)
}

// strike waits for the victim and kills it.
func (v victim) strike(ctx context.Context, h *lab.Host, ended chan lab.Result) (int, error) {
	wait := func(there bool, is func(process) bool) (int, error) {
		for {
			if len(ended) > 0 {
				return 0, errOver
			}
			if ctx.Err() != nil {
				return 0, ctx.Err()
			}
			if pid := find(h, is); (pid != 0) == there {
				return pid, nil
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	if v.gone != nil {
		for _, there := range []bool{true, false} {
			if _, err := wait(there, v.gone); err != nil {
				return 0, err
			}
		}
	}
	if _, err := wait(true, v.is); err != nil {
		return 0, err
	}
	time.Sleep(v.after)
	pid, err := wait(true, v.is)
	if err != nil {
		return 0, err
	}
	return pid, os.NewSyscallError("kill", syscall.Kill(pid, syscall.SIGKILL))
}

// alone waits until nothing of a checkpoint is at work on the host any more.
func alone(ctx context.Context, h *lab.Host) error {
	works := func(p process) bool {
		return takes(p) || dumps(p) || p.name == "cryo-gpu-keeper" || p.name == "runc"
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		pid := find(h, works)
		if pid == 0 {
			return nil
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			line, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
			return fmt.Errorf("process %d is at work still: %q", pid, line)
		}
	}
}

// process is one on a host, outside of containers.
type process struct {
	name string // the first 15 characters of its program's
	line string // command line
}

// find gives the first process in the host's own mount namespace for which is holds; 0 if there is none.
func find(h *lab.Host, is func(process) bool) int {
	own, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", h.Pid()))
	if err != nil {
		return 0
	}
	entries, _ := os.ReadDir("/proc") // it can always be read
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		dir := filepath.Join("/proc", e.Name())
		name, err := os.ReadFile(filepath.Join(dir, "comm"))
		if err != nil {
			continue
		}
		line, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		if !is(process{strings.TrimSpace(string(name)), strings.ReplaceAll(string(line), "\x00", " ")}) {
			continue
		}
		if ns, err := os.Readlink(filepath.Join(dir, "ns/mnt")); err == nil && ns == own {
			return pid
		}
	}
	return 0
}
