package main

import "context"

// watchers is a container in which one process for each role watches a GPU by NVML, see workloads/nvml_watch.py.
func (b *bench) watchers(r *result, id string, roles ...string) *container {
	c := b.python(id, "nvml_watch.py", roles...)
	c.members = len(roles)
	return c
}

// runNVML moves a process that has NVML open beside CUDA: the driver saves both.
func runNVML(ctx context.Context, b *bench, r *result) error {
	return b.journey(ctx, r, b.watchers(r, r.Case, "beside"), route{live: true})
}

// runNVMLAlone has a process that uses no CUDA: the driver saves it, too.
func runNVMLAlone(ctx context.Context, b *bench, r *result) error {
	return b.journey(ctx, r, b.watchers(r, r.Case, "beside", "alone"), route{live: true})
}

// runNVMLEvents has what the driver does not save of NVML: the device file of an event set, and what a child has inherited.
func runNVMLEvents(ctx context.Context, b *bench, r *result) error {
	for _, roles := range [][]string{{"events"}, {"alone", "forked"}} {
		c := b.watchers(r, r.Case+"-"+roles[len(roles)-1], roles...)
		defer b.clear(ctx, c)
		if err := b.begin(ctx, r, c); err != nil {
			return err
		}
		if err := b.refused(ctx, r, c, []string{"gpu-open", `\bpython`}); err != nil {
			return err
		}
	}
	return nil
}

// runKeeperNVML has processes with and without CUDA.
func runKeeperNVML(ctx context.Context, b *bench, r *result) error {
	return b.journey(ctx, r, b.watchers(r, r.Case, "beside", "alone").keeper(), route{live: true})
}

// runKeeperNVMLOnly is without any process that uses CUDA, as a sidecar is.
func runKeeperNVMLOnly(ctx context.Context, b *bench, r *result) error {
	return b.journey(ctx, r, b.watchers(r, r.Case, "alone").keeper(), route{live: true})
}
