package main

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// runInterrupt takes checkpoints of contrib/cuda's example while its kernels of a minute run. It says at its end whether it
// arrived where it should.
func runInterrupt(ctx context.Context, b *bench, r *result) error {
	const kernels = 45 // seconds, were they not interrupted
	c := b.container(r.Case, "/gpu/example", fmt.Sprint(kernels), "2")
	defer b.clear(ctx, c)
	c.members = 0
	if err := c.start(ctx); err != nil {
		return err
	}
	if _, err := c.output(ctx, b.a, regexp.MustCompile(`progress [1-9].*launches=2 returns=0`)); err != nil {
		return err
	}
	t, err := b.leaveRunning(ctx, r, c, "live")
	if err != nil {
		return err
	}
	if t.GPU.Lock > 1 {
		return fmt.Errorf("its kernels took %.2f s to leave", t.GPU.Lock)
	}
	r.checked("left running: locked in %.3f s while kernels of %d s ran", t.GPU.Lock, kernels)
	if _, err := c.output(ctx, b.a, regexp.MustCompile(`launches=\d+ returns=[1-9]`)); err != nil {
		return err
	}
	if err := b.moveSilent(ctx, r, c); err != nil {
		return err
	}
	if lock := r.Times["end.lock"][0]; lock > 1 {
		return fmt.Errorf("its kernels took %.2f s to leave", lock)
	}
	r.checked("ended: locked in %.3f s", r.Times["end.lock"][0])
	last, err := c.output(ctx, b.b, regexp.MustCompile(`(?m)^(OK|BAD) launches.*$`))
	if err != nil {
		return err
	}
	r.checked("restored, and at the end: %s", last)
	if last[:2] != "OK" {
		return fmt.Errorf("the result is wrong: %s", last)
	}
	return nil
}

// moveSilent is move for a program that answers no questions.
func (b *bench) moveSilent(ctx context.Context, r *result, c *container) error {
	ref := b.registry.Reference("gpu/" + c.id + ":end")
	if _, err := b.checkpoint(ctx, r, c, ref, "end"); err != nil {
		return err
	}
	if err := b.carry(ctx, r, c, ref); err != nil {
		return err
	}
	return b.restore(ctx, r, c, ref)
}

// output waits for a container to print something, and gives it.
func (c *container) output(ctx context.Context, h *lab.Host, wanted *regexp.Regexp) (string, error) {
	for deadline := time.Now().Add(c.slow); ; time.Sleep(50 * time.Millisecond) {
		text, err := os.ReadFile(c.log(h))
		if found := wanted.Find(text); found != nil {
			return string(found), nil
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			return "", fmt.Errorf("%s on %s does not print %s (%v): %s", c.id, h.Name, wanted, err, end(c.log(h), 1000))
		}
	}
}
