package main

import (
	"context"
	"errors"
	"slices"
	"time"
)

// besidePause begins what is beside the pause that a process sees with cryo.
const besidePause = "the pause it sees with "

// snapshot measures how long a container stands still, and the time until a snapshot is complete and on disk. In each round the same
// process is dumped by bare CRIU and by cryo, and another with the same memory by ctr, each at another place in every round.
func (b *bench) snapshot(ctx context.Context, s subject) error {
	freeze := &figure{Case: "freeze", What: "longest pause the process sees", BesideWhat: "bare criu dump to tmpfs", Aim: aim{Ratio: 1}}
	pause := &figure{Case: "freeze", What: "longest pause the process sees", BesideWhat: besidePause + "bare criu dump"}
	said := &figure{Case: "freeze", What: "what cryo reports", BesideWhat: "bare criu dump to tmpfs"}
	stock := &figure{Case: "freeze", What: "longest pause the process sees", BesideWhat: besidePause + "ctr c checkpoint"}
	podman := &figure{Case: "freeze", What: "longest pause the process sees", BesideWhat: besidePause + podmanCheckpoint}
	durable := &figure{Case: "snapshot", What: "complete and durable", BesideWhat: "ctr c checkpoint --task --rw --image", Aim: aim{Ratio: 0.25}}
	all := []*figure{freeze, pause, said, stock, podman, durable}
	for _, f := range all {
		f.Subject, f.Unit = s.name(), "s"
	}
	defer b.report.add(all...)

	bare := &side{run: func(c *container) error {
		elapsed, gap, err := b.bareDump(ctx, c)
		if err == nil {
			freeze.Beside, said.Beside, pause.Beside = append(freeze.Beside, elapsed), append(said.Beside, elapsed), append(pause.Beside, gap)
		}
		return err
	}}
	ours := &side{run: func(c *container) error {
		t, elapsed, gap, err := b.durableSnapshot(ctx, c)
		if err == nil {
			freeze.Cryo, pause.Cryo, stock.Cryo, podman.Cryo = append(freeze.Cryo, gap), append(pause.Cryo, gap), append(stock.Cryo, gap), append(podman.Cryo, gap)
			said.Cryo, durable.Cryo = append(said.Cryo, t.Freeze), append(durable.Cryo, elapsed)
		}
		return err
	}}
	ctr := &side{run: func(c *container) error {
		elapsed, gap, err := b.stockSnapshot(ctx, c)
		if err == nil {
			stock.Beside, durable.Beside = append(stock.Beside, gap), append(durable.Beside, elapsed)
		}
		return err
	}}
	p, failed := b.newPodman(ctx)
	for round := 0; round < b.rounds && (round == 0 || !b.late()); round++ {
		var err error
		if round%2 == 0 {
			err = errors.Join(b.sides(ctx, cryoRuntime, s, bare, ours), b.sides(ctx, stockRuntime, s, ctr))
		} else {
			err = errors.Join(b.sides(ctx, stockRuntime, s, ctr), b.sides(ctx, cryoRuntime, s, ours, bare))
		}
		if err != nil {
			return err
		}
		if failed == nil {
			var gap float64
			if gap, failed = p.pause(ctx, s); failed == nil {
				podman.Beside = append(podman.Beside, gap)
			}
		}
	}
	if failed != nil {
		podman.BesideNotRun = reason(failed)
	}
	for _, f := range all {
		f.NotRun = ours.notRun
	}
	freeze.BesideNotRun, pause.BesideNotRun, said.BesideNotRun = bare.notRun, bare.notRun, bare.notRun
	stock.BesideNotRun, durable.BesideNotRun = ctr.notRun, ctr.notRun
	return nil
}

// side is one of those that are compared. One that fails is not tried again, and does not keep the others from being measured.
type side struct {
	run    func(*container) error
	notRun string
}

// sides has a fresh container measured by some sides in turn.
func (b *bench) sides(ctx context.Context, runtime string, s subject, all ...*side) error {
	if !slices.ContainsFunc(all, func(o *side) bool { return o.notRun == "" }) {
		return nil
	}
	return b.with(ctx, runtime, s, func(c *container) error {
		for _, o := range all {
			if o.notRun != "" {
				continue
			}
			if err := o.run(c); ctx.Err() != nil {
				return err
			} else if err != nil {
				o.notRun = failure + err.Error()
			}
		}
		return nil
	})
}

// with runs f on a fresh container on the first host.
func (b *bench) with(ctx context.Context, runtime string, s subject, f func(*container) error) error {
	c, err := b.container(ctx, b.a, runtime, s)
	if err != nil {
		return err
	}
	return errors.Join(f(c), c.remove(ctx))
}

// quiet makes the process's clock forget what was.
func (b *bench) quiet(ctx context.Context, p *process) error {
	if err := b.settle(); err != nil {
		return err
	}
	_, err := p.gap(ctx)
	return err
}

// durableSnapshot gives the time of a checkpoint by cryo, and of a sync of the file system after it.
func (b *bench) durableSnapshot(ctx context.Context, c *container) (t taken, elapsed, gap float64, err error) {
	if err := b.quiet(ctx, &c.process); err != nil {
		return t, 0, 0, err
	}
	t, elapsed, err = b.checkpoint(ctx, c, "bench:"+c.id, "--leave-running")
	if err != nil {
		return t, 0, 0, err
	}
	synced := time.Now()
	if err := b.settle(); err != nil {
		return t, 0, 0, err
	}
	elapsed += time.Since(synced).Seconds()
	gap, err = c.gap(ctx)
	return t, elapsed, gap, errors.Join(err, empty(ctx, c.host))
}

// stockSnapshot is the same by ctr.
func (b *bench) stockSnapshot(ctx context.Context, c *container) (elapsed, gap float64, err error) {
	if err := b.quiet(ctx, &c.process); err != nil {
		return 0, 0, err
	}
	elapsed, err = b.timed(ctx, c.host, "ctr", "containers", "checkpoint", "--task", "--rw", "--image", c.id, "bench.test/stock:"+c.id)
	if err != nil {
		return 0, 0, err
	}
	synced := time.Now()
	if err := b.settle(); err != nil {
		return 0, 0, err
	}
	elapsed += time.Since(synced).Seconds()
	gap, err = c.gap(ctx)
	return elapsed, gap, errors.Join(err, empty(ctx, c.host))
}
