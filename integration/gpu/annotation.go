package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// runKeeperAnnotation has ctr restore containers by their annotation, whose GPUs are those that ctr gives them.
func runKeeperAnnotation(ctx context.Context, b *bench, r *result) error {
	const gib = 4
	if err := b.byAnnotation(ctx, r, b.allocation(r, "plain", gib, "random").keeper(), byKeeper...); err != nil {
		return err
	}
	other, err := r.byDriver(func(other *result) error {
		return b.byAnnotation(ctx, other, b.allocation(other, "plain", gib, "random"))
	})
	if err != nil {
		return err
	}
	for _, what := range slices.Sorted(maps.Keys(other.Times)) {
		for _, seconds := range other.Times[what] {
			r.took("driver."+what, seconds)
		}
	}
	return nil
}

// byAnnotation takes a container of the first GPU to the second host, where it is given the last. The flags are those of its checkpoint.
func (b *bench) byAnnotation(ctx context.Context, r *result, c *container, flags ...string) error {
	defer b.clear(ctx, c)
	if err := b.begin(ctx, r, c); err != nil {
		return err
	}
	ref := b.registry.Reference("gpu/" + c.id + ":end")
	if _, err := b.checkpoint(ctx, r, c, ref, "end", slices.Concat(flags, []string{"--push", "--plain-http"})...); err != nil {
		return err
	}
	c.remove(ctx, b.a)
	if err := b.a.Cryo(ctx, "rm", ref).Err(); err != nil {
		return err
	}
	if err := b.b.Ctr(ctx, slices.Concat([]string{"images", "pull"}, b.registry.CtrFlags(lab.Password), []string{b.image})...).Err(); err != nil {
		return err
	}
	// Containers see this machine's files, on which nvidia-ctk's are mounted once more: that no specification says.
	if err := b.b.Configure(fmt.Sprintf("[restore.policy]\nrepositories = [%[1]q]\nplain-http = [%[1]q]\nallow = [\"mounts\"]\n[trust.repositories]\n%[1]q = 'unsigned'\n", b.registry.Address)); err != nil {
		return err
	}
	defer func() { _ = b.b.Configure("") }() // the next case has no annotations
	given := len(b.machine.GPUs) - 1
	c.devices = []int{given}
	for _, from := range []string{"registry", "local store"} {
		c.remove(ctx, b.b)
		began := time.Now()
		if err := c.run(ctx, b.b, "--annotation", "io.cryo.restore="+ref); err != nil {
			return err
		}
		r.took(map[string]string{"registry": "registry.restore", "local store": "restore"}[from], time.Since(began).Seconds())
		if _, err := c.check(ctx, b.b, r, "restored by its annotation from the "+from); err != nil {
			return fmt.Errorf("%w\n%s", err, end(c.log(b.b), 3000))
		}
		if err := b.usedBy(ctx, b.b, c, given); err != nil {
			return err
		}
		r.checked("on GPU %d, which ctr gave it, says NVML; the snapshot was taken on GPU 0", given)
		for b.b.Cryo(ctx, "inspect", "--pull", "never", ref).Code != 0 { // it comes into the store while the container runs
			if ctx.Err() != nil {
				return ctx.Err()
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
	return nil
}
