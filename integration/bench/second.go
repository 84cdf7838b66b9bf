package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/cryo-project/cryo/integration/lab"
)

// second measures how many bytes a second snapshot adds to the local store and sends to the registry, after 1 % of memory has changed.
func (b *bench) second(ctx context.Context, s subject) error {
	l, err := b.lab.Line(ctx, b.registry)
	if err != nil {
		return err
	}
	defer l.Close()
	for _, change := range []struct {
		how string
		run int // pages
		aim float64
	}{{"in one run", 0, 0.02}, {"in scattered runs of 64 KiB", 16, 0.2}, {"in scattered single pages", 1, 0}} {
		kept := &figure{What: "bytes stored, 1 % changed " + change.how, BesideWhat: "first snapshot"}
		sent := &figure{What: "bytes sent, 1 % changed " + change.how, BesideWhat: "first snapshot"}
		for _, f := range []*figure{kept, sent} {
			f.Case, f.Subject, f.Unit, f.Aim = "second", s.name(), "B", aim{Ratio: change.aim}
		}
		err := b.with(ctx, cryoRuntime, s, func(c *container) error {
			for n, name := range []string{"first", "second"} {
				if n == 1 {
					if _, err := c.ask(ctx, "change", "10", strconv.Itoa(change.run)); err != nil {
						return err
					}
				}
				k, t, err := b.moved(ctx, c, l, name)
				if err != nil {
					return err
				}
				if n == 0 {
					kept.Beside, sent.Beside = append(kept.Beside, k), append(sent.Beside, t)
				} else {
					kept.Cryo, sent.Cryo = append(kept.Cryo, k), append(sent.Cryo, t)
				}
			}
			return nil
		})
		b.report.add(kept, sent)
		if err := errors.Join(err, b.afresh(ctx, b.a)); err != nil {
			return err
		}
	}
	return nil
}

// moved is how many bytes a checkpoint adds to the store, and its push sends.
func (b *bench) moved(ctx context.Context, c *container, l *lab.Line, name string) (kept, sent float64, err error) {
	store, wire := c.host.CryoRoot(), l.Sent.Load()
	before, err := stored(store)
	if err != nil {
		return 0, 0, err
	}
	ref := fmt.Sprintf("%s/bench/second:%s-%s", l.Address, c.id, name)
	if _, _, err := b.checkpoint(ctx, c, ref, "--leave-running"); err != nil {
		return 0, 0, err
	}
	after, err := stored(store)
	if err != nil {
		return 0, 0, err
	}
	err = c.host.Cryo(ctx, "push", "--plain-http", ref).Err()
	return float64(after - before), float64(l.Sent.Load() - wire), err
}
