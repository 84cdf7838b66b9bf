package main

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"time"
)

// allocation is a container that holds so many GiB of device memory.
func (b *bench) allocation(r *result, mode string, gib int, pattern string) *container {
	return b.container(r.Case, "/gpu/app", "--mode", mode, "--gib", strconv.Itoa(gib), "--pattern", pattern)
}

// python is a journey of a program of Python.
func python(program string) func(context.Context, *bench, *result) error {
	return func(ctx context.Context, b *bench, r *result) error {
		return b.journey(ctx, r, b.python(r.Case, program), route{live: true})
	}
}

func (b *bench) python(id, program string, args ...string) *container {
	return b.container(id, append([]string{python3(), "/gpu/" + program}, args...)...)
}

func runShell(ctx context.Context, b *bench, r *result) error {
	return b.journey(ctx, r, b.shell(r), route{live: true})
}

func runPython(ctx context.Context, b *bench, r *result) error {
	c := b.python(r.Case, "python_counter.py")
	c.devices = nil
	return b.journey(ctx, r, c, route{live: true})
}

func (b *bench) shell(r *result) *container {
	c := b.container(r.Case, "/gpu/shell.sh")
	c.devices = nil
	return c
}

// says makes sure that a message has what is wanted, by regular expressions.
func says(message string, want ...string) error {
	for _, w := range want {
		if !regexp.MustCompile(w).MatchString(message) {
			return fmt.Errorf("the message has no %q: %s", w, message)
		}
	}
	return nil
}

func runInference(ctx context.Context, b *bench, r *result) error {
	c := b.python(r.Case, "torch_inference.py")
	return b.journey(ctx, r, c, route{live: true})
}

func runSeveral(ctx context.Context, b *bench, r *result) error {
	c := b.container(r.Case, "/gpu/app", "--gib", "1", "--processes", "3")
	c.members = 3
	defer b.clear(ctx, c)
	if err := c.start(ctx); err != nil {
		return err
	}
	if err := b.refused(ctx, r, c, []string{"gpu-several", `\bapp\b`}); err != nil {
		return err
	}
	forced := []string{"--force", "gpu-several"}
	if _, err := b.leaveRunning(ctx, r, c, "live", forced...); err != nil {
		return err
	}
	return b.move(ctx, r, c, route{checkpoint: forced})
}

func runManaged(ctx context.Context, b *bench, r *result) error {
	return b.unsupported(ctx, r, b.container(r.Case, "/gpu/app", "--gib", "0.25", "--mode", "managed"))
}

// runEmptyPool has a program that the driver would save, and lose at its restore.
func runEmptyPool(ctx context.Context, b *bench, r *result) error {
	return b.unsupported(ctx, r, b.container(r.Case, "/gpu/managed", "--empty-pool"))
}

// unsupported wants a container refused for its managed memory, and its process named.
func (b *bench) unsupported(ctx context.Context, r *result, c *container) error {
	defer b.clear(ctx, c)
	if err := c.start(ctx); err != nil {
		return err
	}
	return b.refused(ctx, r, c, []string{"(?i)managed memory", `\b` + filepath.Base(c.program[0]) + `\b`})
}

// runLong wants a deadline to be kept, and who was late to be named: process, command and GPU.
func runLong(ctx context.Context, b *bench, r *result) error {
	const deadline, kernel = 2 * time.Second, 8
	c := b.container(r.Case, "/gpu/app", "--gib", "1")
	defer b.clear(ctx, c)
	if err := c.start(ctx); err != nil {
		return err
	}
	long := func() error {
		_, err := c.ask(ctx, b.a, 0, fmt.Sprintf("long %d", kernel))
		return err
	}
	if err := long(); err != nil {
		return err
	}
	pid, _, err := b.a.Task(ctx, c.id)
	if err != nil {
		return err
	}
	named := []string{fmt.Sprintf(`\b(%d|1)\b`, pid), `\bapp\b`, `GPU`}
	if err := b.refused(ctx, r, c, named, "--gpu-timeout", deadline.String()); err != nil {
		return err
	}
	// What CUDA needs to start and the lock's own deadline; without the kernel's end.
	if took := r.Times["refused"][0]; took > (deadline + 4*time.Second).Seconds() {
		return fmt.Errorf("refused after %.1f s with a deadline of %s", took, deadline)
	}
	r.checked("refused after %.1f s, deadline %s, kernel %d s", r.Times["refused"][0], deadline, kernel)
	if err := long(); err != nil {
		return err
	}
	// With time enough the same kernel is waited for.
	return b.move(ctx, r, c, route{checkpoint: []string{"--gpu-timeout", "30s"}})
}

func runOtherGPU(ctx context.Context, b *bench, r *result) error {
	return b.otherGPU(ctx, r, b.container(r.Case, "/gpu/app", "--gib", "2"), route{})
}

// otherGPU goes to the second GPU by naming it, and back to the first by a pair. What is handed over is handed over there too, and prewarmed.
func (b *bench) otherGPU(ctx context.Context, r *result, c *container, o route) error {
	defer b.clear(ctx, c)
	if err := b.begin(ctx, r, c); err != nil {
		return err
	}
	if err := b.usedBy(ctx, b.a, c, 0); err != nil {
		return err
	}
	o.restore = []string{"--device", "nvidia.com/gpu=1"}
	if err := b.move(ctx, r, c, o); err != nil {
		return err
	}
	if err := b.usedBy(ctx, b.b, c, 1); err != nil {
		return err
	}
	r.checked("restored on GPU 1, says NVML")
	if o.handed > 0 {
		if err := b.prewarmed(ctx, r, c, b.registry.Reference("gpu/"+c.id+":end"), "prewarmed", o.restore); err != nil {
			return err
		}
		if err := b.usedBy(ctx, b.b, c, 1); err != nil {
			return err
		}
	}
	there, here := b.b, b.a
	b.a, b.b = there, here
	defer func() { b.a, b.b = here, there }()
	for _, what := range []string{"there", "there.again"} {
		if o.handed == 0 {
			break
		}
		if err := b.leaveRunningByKeeper(ctx, r, c, what, o.handed); err != nil {
			return err
		}
	}
	back := []string{"--device", "nvidia.com/gpu=0", "--gpu", b.machine.GPUs[1].UUID + "=" + b.machine.GPUs[0].UUID}
	if err := b.move(ctx, r, c, route{checkpoint: o.checkpoint, restore: back, handed: o.handed}); err != nil {
		return err
	}
	if err := b.usedBy(ctx, here, c, 0); err != nil {
		return err
	}
	r.checked("restored on GPU 0 again, says NVML")
	if o.handed == 0 {
		return nil
	}
	b.a, b.b = here, there
	return b.leaveRunningByKeeper(ctx, r, c, "again", o.handed)
}

func runTwoGPUs(ctx context.Context, b *bench, r *result) error {
	c := b.python(r.Case, "torch_two_gpus.py")
	c.devices = []int{0, 1}
	defer b.clear(ctx, c)
	if err := c.start(ctx); err != nil {
		return err
	}
	return b.refused(ctx, r, c, []string{"gpu-peer", "python"})
}
