package main

import (
	"context"
	"fmt"
	"strconv"
)

// servers takes containers with the memory of an inference server to the second host. What cannot be handed over goes by the driver, and
// why is told: either will do, as long as everything is right afterwards.
func (b *bench) servers(ctx context.Context, r *result, percent int) error {
	const small = 4 // GiB: the driver saves this
	large := int(b.machine.GPUs[0].Memory>>30) * percent / 100
	for _, s := range []struct {
		name, about string
		gib         int
		env         []string
	}{
		{"cache", "one allocation", large, nil},
		{"segments", "expandable segments", small, []string{"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"}},
	} {
		part := &result{Case: r.Case + "-" + s.name, Times: map[string][]float64{}}
		err := b.server(ctx, part, s.gib, s.env)
		for what, times := range part.Times {
			if s.name != "cache" {
				what = s.name + "." + what
			} else if part.Snapshot != nil {
				r.Snapshot = part.Snapshot
			}
			r.Times[what] = append(r.Times[what], times...)
		}
		for _, line := range part.Checks {
			r.checked("%s, %d GiB: %s", s.about, s.gib, line)
		}
		if err != nil {
			return fmt.Errorf("%s, %d GiB: %w", s.about, s.gib, err)
		}
	}
	return nil
}

func (b *bench) server(ctx context.Context, r *result, gib int, env []string) error {
	c := b.python(r.Case, "torch_server.py", strconv.Itoa(gib)).keeper()
	for _, v := range env {
		c.flags = append(c.flags, "--env", v)
	}
	defer b.clear(ctx, c)
	if err := b.begin(ctx, r, c); err != nil {
		return err
	}
	s, err := b.sharing(ctx, r, c)
	if err != nil {
		return err
	}
	how := "both engines"
	switch {
	case s.handed == 0:
		how = "the driver"
	case s.held-s.handed < s.held/4:
		how = "the engine keeper, but for contexts and the like"
	}
	r.checked("by %s: %s", how, s)
	return b.move(ctx, r, c, route{})
}
