package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// cycles does something up to count times, for so long, and says how often it was done. It begins none for which, going by the longest so
// far, there is no time.
func cycles(ctx context.Context, count int, most time.Duration, do func(n int) error) (done int, err error) {
	end := time.Now().Add(most)
	if deadline, ok := ctx.Deadline(); ok && deadline.Before(end) {
		end = deadline
	}
	var longest time.Duration
	for ; done < count && time.Now().Add(longest).Before(end); done++ {
		began := time.Now()
		if err := do(done); err != nil {
			return done, fmt.Errorf("cycle %d: %w", done+1, err)
		}
		longest = max(longest, time.Since(began))
	}
	if done == 0 {
		err = fmt.Errorf("no cycle was done in %s", most)
	}
	return done, err
}

// quiet is a result with the same times, whose checks and messages, the same in each cycle, are dropped.
func (r *result) quiet() *result { return &result{Case: r.Case, Times: r.Times} }

// leaveRunningByKeeper takes a checkpoint by the engine keeper that leaves the container running, and verifies it. So many bytes must have been
// handed over.
func (b *bench) leaveRunningByKeeper(ctx context.Context, r *result, c *container, prefix string, least int64, flags ...string) error {
	t, err := b.leaveRunning(ctx, r, c, prefix, slices.Concat(byKeeper, flags)...)
	if err == nil && t.GPU.Bytes < least {
		err = fmt.Errorf("%d MiB were handed over, which should be %d at least", t.GPU.Bytes>>20, least>>20)
	}
	return err
}

// thereAndBack ends the container by a checkpoint with these flags and restores it on the other host, from which the next one is taken. The hosts
// are to be put back in the end, see home.
func (b *bench) thereAndBack(ctx context.Context, r *result, c *container, flags ...string) error {
	if err := b.move(ctx, r, c, route{checkpoint: flags}); err != nil {
		return err
	}
	b.a, b.b = b.b, b.a
	return nil
}

// leaveOrMove is cycle n of a container: each fifth moves it, the others leave it running.
func (b *bench) leaveOrMove(ctx context.Context, r *result, c *container, n int, flags ...string) error {
	if n%5 == 4 {
		return b.thereAndBack(ctx, r, c, slices.Concat(byKeeper, flags)...)
	}
	return b.leaveRunningByKeeper(ctx, r, c, "live", 1, flags...)
}

// home gives what puts the hosts back in their order.
func (b *bench) home() func() {
	first, second := b.a, b.b
	return func() { b.a, b.b = first, second }
}

// stress takes a container whose threads never rest through checkpoints: first it is left running, for a sixth of the time, then ended and restored on the
// hosts in turn. Each time every byte is verified.
func (b *bench) stress(ctx context.Context, r *result, count int, most time.Duration) error {
	const threads, mib = 8, 512
	c := b.container(r.Case, "/gpu/busy", "--threads", strconv.Itoa(threads), "--mib", strconv.Itoa(mib)).keeper()
	defer b.clear(ctx, c)
	defer b.home()()
	if err := b.begin(ctx, r, c); err != nil {
		return err
	}
	quiet, running := r.quiet(), &growth{}
	began := time.Now()
	done, err := cycles(ctx, count, most/6, func(n int) error {
		if err := b.leaveRunningByKeeper(ctx, quiet, c, "live", mib<<20/2); err != nil {
			return err
		}
		return b.look(ctx, running, c, n)
	})
	r.checked("left running: %d cycles in %.0f s, of %d asked", done, time.Since(began).Seconds(), count)
	if err != nil {
		return err
	}
	if _, err := c.check(ctx, b.a, r, "after those"); err != nil {
		return err
	}
	if err := b.lookAtDevice(ctx, running, c, done-1); err != nil {
		return err
	}
	grown := running.verdict(r, "left running")

	restored := &growth{}
	began = time.Now()
	done, err = cycles(ctx, count, most-most/6, func(n int) error {
		if err := b.thereAndBack(ctx, quiet, c, byKeeper...); err != nil {
			return err
		}
		return b.look(ctx, restored, c, n)
	})
	r.Snapshot = quiet.Snapshot
	r.checked("ended and restored: %d cycles in %.0f s, of %d asked", done, time.Since(began).Seconds(), count)
	if err != nil {
		return err
	}
	if _, err := c.check(ctx, b.a, r, "after those"); err != nil {
		return err
	}
	if err := b.lookAtDevice(ctx, restored, c, done-1); err != nil {
		return err
	}
	if grown = append(grown, restored.verdict(r, "restored")...); len(grown) > 0 {
		return fmt.Errorf("grown beyond bounds: %s", strings.Join(grown, "; "))
	}
	return nil
}

// trainThrough takes a program that trains through checkpoints, of which each fifth ends it. A third of the time is for the
// undisturbed run.
func (b *bench) trainThrough(ctx context.Context, r *result, count int, most time.Duration) error {
	const between = 10 // steps
	c := b.python(r.Case, trainingProgram).keeper()
	defer b.clear(ctx, c)
	defer b.home()()
	if err := c.start(ctx); err != nil {
		return err
	}
	if err := c.train(ctx, b.a, between); err != nil {
		return err
	}
	quiet := r.quiet()
	began := time.Now()
	done, err := cycles(ctx, count, 2*most/3, func(n int) error {
		if err := b.leaveOrMove(ctx, quiet, c, n); err != nil {
			return err
		}
		steps, err := c.steps(ctx, b.a)
		if err != nil {
			return err
		}
		return c.train(ctx, b.a, steps+between)
	})
	r.Snapshot = quiet.Snapshot
	r.checked("%d cycles in %.0f s, of %d asked; %d of them ended and restored it", done, time.Since(began).Seconds(), count, len(r.Times["restore"]))
	if err != nil {
		return err
	}
	return b.undisturbed(ctx, r, c, b.a, done*between)
}
