package main

import "context"

// runKeeperOtherGPU has memory of one GPU loaded onto another.
func runKeeperOtherGPU(ctx context.Context, b *bench, r *result) error {
	const gib = 2
	c := b.allocation(r, "plain", gib, "random").keeper()
	return b.otherGPU(ctx, r, c, route{checkpoint: byKeeper, handed: gib << 30})
}

// runKeeperNCCL has two processes hand over at once, each what it has on a GPU of its own.
func runKeeperNCCL(ctx context.Context, b *bench, r *result) error {
	return b.handing(ctx, r, b.ranks(r.Case, sharesNothing...).keeper(), true, "--tcp-established")
}
