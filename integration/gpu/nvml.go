package main

import "context"

// watchers is a container in which one process for each role watches a GPU by NVML, see workloads/nvml_watch.py.
func (b *bench) watchers(r *result, roles ...string) *container {
	c := b.python(r.Case, "nvml_watch.py", roles...)
	c.members = len(roles)
	return c
}

// runNVML moves a process that has NVML open beside CUDA: the driver saves both.
func runNVML(ctx context.Context, b *bench, r *result) error {
	return b.journey(ctx, r, b.watchers(r, "beside"), route{live: true})
}

// runNVMLAlone has a process that uses no CUDA. Without the library it is refused; what is forced fails, and a program that initialises NVML again goes on.
func runNVMLAlone(ctx context.Context, b *bench, r *result) error {
	c := b.watchers(r, "beside", "recover")
	defer b.clear(ctx, c)
	if err := b.begin(ctx, r, c); err != nil {
		return err
	}
	if err := b.refused(ctx, r, c, []string{"gpu-open", `\bpython`, "keeper"}); err != nil {
		return err
	}
	forced := route{checkpoint: []string{"--force", "gpu-open"}}
	if _, err := b.leaveRunning(ctx, r, c, "live", forced.checkpoint...); err != nil {
		return err
	}
	return b.move(ctx, r, c, forced)
}

// runKeeperNVML has processes with and without CUDA, one of them forked from another that has NVML open: all go on with the handles that they have.
func runKeeperNVML(ctx context.Context, b *bench, r *result) error {
	return b.journey(ctx, r, b.watchers(r, "beside", "alone", "forked").keeper(), route{live: true})
}

// runKeeperNVMLOnly is without any process that uses CUDA, as a sidecar is.
func runKeeperNVMLOnly(ctx context.Context, b *bench, r *result) error {
	return b.journey(ctx, r, b.watchers(r, "alone", "forked").keeper(), route{live: true})
}
