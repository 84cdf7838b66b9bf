package main

import "context"

// runStock takes a checkpoint with ctr and restores it with ctr. The client pauses the task first, and resumes it afterwards.
func runStock(ctx context.Context, b *bench, r *result) error {
	c := b.container(r.Case, "/gpu/app", "--gib", "0.5", "--pattern", "regular")
	defer b.clear(ctx, c)
	if err := c.start(ctx); err != nil {
		return err
	}
	ref := "gpu.test/" + c.id + ":1"
	taken := b.a.Ctr(ctx, "containers", "checkpoint", "--task", "--rw", "--image", c.id, ref)
	if taken.Err() != nil {
		return taken.Err()
	}
	r.took("ctr checkpoint", taken.Elapsed.Seconds())
	if _, err := c.check(ctx, b.a, r, "after ctr's checkpoint"); err != nil {
		return err
	}
	c.remove(ctx, b.a)
	restored := b.a.Ctr(ctx, "containers", "restore", "--live", "--rw", c.id, ref)
	if restored.Err() != nil {
		return restored.Err()
	}
	r.took("ctr restore", restored.Elapsed.Seconds())
	if _, err := c.check(ctx, b.a, r, "after ctr's restore"); err != nil {
		return err
	}
	return b.a.Ctr(ctx, "images", "delete", ref).Err()
}
