package main

import (
	"context"
	"fmt"
	"strconv"
)

// fullMost is how long a container may be frozen of whose memory a device has no room for a copy, seconds.
const fullMost = 1.5

// full takes checkpoints of a container of whose memory the device has no room for a copy, while it writes to a GiB of it all the time. Left running, all else has been copied before it stands still; each round has a container of its own. The last checkpoint
// ends it: that one copies all of it when it stands still, which is the freeze without copying ahead. Every byte is verified each time, and where it is restored.
func (b *bench) full(ctx context.Context, r *result, gib, random int) error {
	const churn, rounds = 1, 2
	if b.roomForCopy(gib) {
		return fmt.Errorf("the device has room for a copy of %d GiB: nothing is shown", gib)
	}
	var slow error
	var c *container
	for n := range rounds {
		if c != nil { // the driver has restored its process: nothing would be copied while it runs
			b.clear(ctx, c)
		}
		c = b.container(fmt.Sprintf("%s-%d", r.Case, n), "/gpu/app", "--gib", strconv.Itoa(gib), "--pattern", "regular", "--random", strconv.Itoa(random), "--churn", strconv.Itoa(churn)).keeper()
		defer b.clear(ctx, c)
		if err := b.begin(ctx, r, c); err != nil {
			return err
		}
		// Without a parent, whose frames need not be stored again.
		t, err := b.leaveRunning(ctx, r, c, "ahead", append([]string{"--parent", "none"}, byKeeper...)...)
		if err != nil {
			return err
		}
		r.checked("round %d: frozen for %.2f s (lock %.2f, save %.2f, dump %.2f, load %.2f); before that, %.2f s of copying; %.1f of %.1f GiB had not changed; %.2f s from the first to the last of the rest", n, t.Freeze,
			t.GPU.Lock, t.GPU.Save, t.Dump, t.GPU.Load, t.GPU.Precopy, gibibytes(t.GPU.Same), gibibytes(t.GPU.Bytes), t.GPU.Devices)
		if least := int64(gib) << 30 * 9 / 10; t.GPU.Same < least {
			return fmt.Errorf("%d MiB had not changed since they were copied, which should be %d at least: see the shim's log for why", t.GPU.Same>>20, least>>20)
		}
		if t.Freeze > fullMost {
			slow = fmt.Errorf("frozen for %.2f s, which should be %.1f at most", t.Freeze, fullMost)
		}
	}
	if err := b.move(ctx, r, c, route{checkpoint: append([]string{"--parent", "none"}, byKeeper...), handed: int64(gib) << 30}); err != nil {
		return err
	}
	without, _ := median(r.Times["end.freeze"])
	with, _ := median(r.Times["ahead.freeze"])
	r.checked("frozen for %.2f s where it was copied ahead, median of %d; for %.2f s where it was not", with, rounds, without)
	return slow
}

func gibibytes(bytes int64) float64 { return float64(bytes) / (1 << 30) }
