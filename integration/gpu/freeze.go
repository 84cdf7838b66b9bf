package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"
)

// roomForCopy is true where a device has room for a copy of so much memory: the freeze then does not wait for it to be drained.
func (b *bench) roomForCopy(gib int) bool {
	const rest = 3 // GiB: contexts, and what a copy leaves free
	return 2*gib+rest <= int(b.machine.GPUs[0].Memory>>30)
}

// freezes takes checkpoints of containers that differ in their device memory alone. Where it has room for a copy the freeze must not grow
// with it, by more than a fifth.
func (b *bench) freezes(ctx context.Context, r *result, sizes []int) error {
	const within = 1.2
	var least, most float64
	for _, gib := range sizes {
		// A size without room for a copy is drained while the container stands still, and is told of, and no more.
		copied := b.roomForCopy(gib)
		rounds := 3
		switch {
		case !copied:
			rounds = 1
		case gib >= 16:
			rounds = 2
		}
		if estimate := time.Duration(5+gib/3*rounds) * time.Second; left(ctx) < estimate {
			r.checked("%d GiB: no time is left for it, it takes about %s", gib, estimate)
			continue
		}
		prefix := freezePrefix + strconv.Itoa(gib)
		if err := b.freeze(ctx, r, gib, rounds, prefix); err != nil {
			return fmt.Errorf("%d GiB: %w", gib, err)
		}
		frozen, _ := median(r.Times[prefix+".freeze"])
		r.checked("%d GiB: frozen for %.2f s, complete after %.2f s; medians of %d; room for a copy: %t", gib, frozen,
			slices.Max(r.Times[prefix+".all"]), rounds, copied)
		if copied {
			if least == 0 {
				least = frozen
			}
			least, most = min(least, frozen), max(most, frozen)
		}
	}
	if least == 0 {
		return nil
	}
	r.checked("with room for a copy: the longest freeze is %.2f times the shortest", most/least)
	if most > within*least {
		return fmt.Errorf("the freeze grows with device memory: from %.2f to %.2f s, %.2f times", least, most, most/least)
	}
	return nil
}

// freeze takes checkpoints of one size. The first of a process is slower: what it needs has not been touched yet.
func (b *bench) freeze(ctx context.Context, r *result, gib, rounds int, prefix string) error {
	c := b.container(fmt.Sprintf("%s-%d", r.Case, gib), "/gpu/app", "--gib", strconv.Itoa(gib), "--pattern", "regular").keeper()
	defer b.clear(ctx, c)
	if err := c.start(ctx); err != nil {
		return err
	}
	quiet := r.quiet()
	if rounds > 1 {
		if err := b.leaveRunningByKeeper(ctx, quiet, c, "first."+prefix, int64(gib)<<30); err != nil {
			return err
		}
	}
	for range rounds {
		if err := b.leaveRunningByKeeper(ctx, quiet, c, prefix, int64(gib)<<30); err != nil {
			return err
		}
	}
	return nil
}

const freezePrefix = "gib "

// left is how much time is left.
func left(ctx context.Context) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		return time.Until(deadline)
	}
	return 24 * time.Hour
}
