package main

import (
	"context"
	"fmt"
)

// runKeeperOtherGPU has memory of one GPU loaded onto another.
func runKeeperOtherGPU(ctx context.Context, b *bench, r *result) error {
	const gib = 2
	c := b.allocation(r, "plain", gib, "random").keeper()
	return b.otherGPU(ctx, r, c, route{checkpoint: byKeeper, handed: gib << 30})
}

// runKeeperNCCL has two processes hand over at once, each what it has on a GPU of its own.
func runKeeperNCCL(ctx context.Context, b *bench, r *result) error {
	return b.handing(ctx, r, b.ranks(r.Case, "", sharesNothing...).keeper(), true, "--tcp-established")
}

// runKeeperTwoGPUs has one process hand over what it has on two GPUs, neither of which has access to the other's memory. In the end it copies between them all the same: the driver takes
// another way then.
func runKeeperTwoGPUs(ctx context.Context, b *bench, r *result) error {
	c := b.container(r.Case, "/gpu/app", "--gib", "2", "--devices", "2").keeper()
	c.devices = []int{0, 1}
	defer b.clear(ctx, c)
	if err := b.begin(ctx, r, c); err != nil {
		return err
	}
	if err := b.handOver(ctx, r, c, true); err != nil {
		return err
	}
	a, err := c.ask(ctx, b.b, 0, "copy")
	if err == nil && !a.OK {
		err = fmt.Errorf("%s", a.text)
	}
	if err != nil {
		return fmt.Errorf("copy from one GPU to the other, without access: %w", err)
	}
	r.checked("copied from one GPU to the other, without access: %s", a.text)
	return nil
}
