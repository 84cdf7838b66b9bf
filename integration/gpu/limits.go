package main

import (
	"context"
	"fmt"
	"strconv"
)

// runKeeperLimits wants nothing to be noticed of the limit that contexts have while the driver saves and restores them. The driver by itself leaves it alone:
// what fails there too is not the library's doing.
func runKeeperLimits(ctx context.Context, b *bench, r *result) error {
	const mib = 64
	program := []string{"/gpu/limits", "--mib", strconv.Itoa(mib)}
	c := b.container(r.Case, program...).keeper()
	leave := func() error { return b.leaveRunningByKeeper(ctx, r, c, "live", mib<<20) }
	if err := b.limits(ctx, r, c, leave, byKeeper...); err != nil {
		return err
	}
	_, err := r.byDriver(func(other *result) error {
		c := b.container(other.Case, program...)
		return b.limits(ctx, other, c, func() error {
			_, err := b.leaveRunning(ctx, other, c, "live")
			return err
		})
	})
	return err
}

// limits takes a program through checkpoints with the limit that it found, and with a higher one, and then by checkpoints with these flags to the other
// host and back. leave takes a checkpoint that leaves it running.
func (b *bench) limits(ctx context.Context, r *result, c *container, leave func() error, flags ...string) error {
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
		if err := leave(); err != nil {
			return err
		}
	}
	for range 2 {
		if err := b.thereAndBack(ctx, r, c, flags...); err != nil {
			return err
		}
	}
	return nil
}
