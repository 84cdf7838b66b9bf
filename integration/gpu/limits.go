package main

import (
	"context"
	"fmt"
)

// runKeeperLimits wants nothing to be noticed of the limit that contexts have while the driver saves and restores them. The driver by itself leaves it alone:
// what fails there too is not the library's doing.
func runKeeperLimits(ctx context.Context, b *bench, r *result) error {
	const mib = 64
	program := []string{"/gpu/limits", "--mib", fmt.Sprint(mib)}
	if err := b.limits(ctx, r, b.container(r.Case, program...).keeper(), mib<<20, byKeeper...); err != nil {
		return err
	}
	other := r.quiet()
	other.Times = map[string][]float64{}
	if err := b.limits(ctx, other, b.container(r.Case+"-driver", program...), 0); err != nil {
		return fmt.Errorf("by the driver: %w", err)
	}
	for _, line := range other.Checks {
		r.checked("by the driver: %s", line)
	}
	return nil
}

// limits takes a program through checkpoints with the limit that it found, and with a higher one, and then to the other host and back. So many bytes
// must be handed over each time it is left running.
func (b *bench) limits(ctx context.Context, r *result, c *container, least int64, flags ...string) error {
	const raised = 8 << 10
	defer b.clear(ctx, c)
	defer b.home()()
	if err := b.begin(ctx, r, c); err != nil {
		return err
	}
	for _, question := range []string{"", fmt.Sprintf("raise %d", raised)} {
		if question != "" {
			a, err := c.ask(ctx, b.a, 0, question)
			if err == nil && !a.OK {
				err = fmt.Errorf("it is not: %s", a.text)
			}
			if err != nil {
				return fmt.Errorf("%s: %w", question, err)
			}
		}
		t, err := b.leaveRunning(ctx, r, c, "live", flags...)
		if err != nil {
			return err
		}
		if t.GPU.Bytes < least {
			return fmt.Errorf("%d MiB were handed over, which should be %d at least", t.GPU.Bytes>>20, least>>20)
		}
	}
	for range 2 {
		if err := b.move(ctx, r, c, route{checkpoint: flags}); err != nil {
			return err
		}
		b.a, b.b = b.b, b.a
	}
	return nil
}
