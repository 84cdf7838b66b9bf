package main

import (
	"context"
	"errors"
	"slices"
	"time"
)

// restore measures how soon a restored process answers, and how soon it has all its memory: by cryo from its local store and from the
// registry, by ctr and by CRIU alone, each with its files in the page cache and without.
func (b *bench) restore(ctx context.Context, s subject) (err error) {
	u, err := newBubble(ctx, b.a)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, u.close()) }()
	local, remote, err := b.cryoWays(ctx, s)
	if err != nil {
		return err
	}
	bare := b.bareWay(ctx, u, s)
	stock, stockRemote := b.stockWays(ctx, s)
	podman := b.podmanWay(ctx, s)
	ways := []*way{local, bare, remote, stock, stockRemote, podman}
	defer func() { b.report.add(restoreFigures(s, local, remote, bare, stock, stockRemote, podman)...) }()
	if err := b.settle(); err != nil {
		return err
	}
	for round := 0; round < b.rounds && (round == 0 || !b.late()); round++ {
		order := slices.Clone(ways)
		if round%2 == 1 {
			slices.Reverse(order)
		}
		for _, w := range order {
			if err := b.bringBackBoth(ctx, w); err != nil {
				return err
			}
		}
	}
	return nil
}

// bringBackBoth takes a time with warm files and one with cold files, unless there is a reason not to. An error ends the bench.
func (b *bench) bringBackBoth(ctx context.Context, w *way) error {
	for _, t := range []*times{&w.warm, &w.cold} {
		if t.notRun != "" {
			continue
		}
		if err := b.bringBack(ctx, w, t); ctx.Err() != nil {
			return err
		} else if err != nil {
			t.notRun = reason(err)
		}
	}
	return nil
}

// reason says why there are no times: something failed, or the page cache cannot be cleared here.
func reason(err error) string {
	var warm *warmError
	if errors.As(err, &warm) {
		return warm.Error()
	}
	var apart *apartError
	if errors.As(err, &apart) {
		return apart.Error()
	}
	if errors.Is(err, errNoPodman) {
		return err.Error()
	}
	return failure + err.Error()
}

// bringBack is one restore: the process is asked from the beginning, then for its memory, and in the end to look at all of that.
func (b *bench) bringBack(ctx context.Context, w *way, t *times) error {
	if w.prepare != nil {
		if err := w.prepare(); err != nil {
			return err
		}
	}
	temper := b.heat
	if t == &w.cold {
		temper = b.chill
	}
	if err := temper(w.files...); err != nil {
		return err
	}
	first, filled, err := b.answer(ctx, w.attempt())
	if err == nil {
		t.first, t.filled = append(t.first, first), append(t.filled, filled)
	}
	return err
}

// answer brings a process back, and asks while the command still works on it.
func (b *bench) answer(ctx context.Context, a *attempt) (first, filled float64, err error) {
	began := time.Now()
	first, err = b.first(ctx, a, began, func(ctx context.Context) error {
		_, err := a.process.ask(ctx, "filled")
		filled = time.Since(began).Seconds() - a.way
		return err
	})
	return first, filled, errors.Join(err, a.remove(ctx))
}

// first brings a process back, asks while the command still works on it, and then calls more, if that is not nil. In the end the process looks at all its memory. first returns when the process has answered, in seconds since it began.
func (b *bench) first(ctx context.Context, a *attempt, began time.Time, more func(context.Context) error) (float64, error) {
	asking, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan error, 1)
	go func() {
		err := a.command(ctx)
		if err != nil {
			cancel(err)
		}
		done <- err
	}()
	answered, err := a.process.await(asking, began)
	if err == nil && more != nil {
		err = more(asking)
	}
	if failed := <-done; failed != nil {
		err = failed // the rest follows from it
	}
	if err == nil {
		_, err = a.process.ask(ctx, "verify")
	}
	return answered.Seconds() - a.way, err
}

// restoreFigures compares.
func restoreFigures(s subject, local, remote, bare, stock, stockRemote, podman *way) []*figure {
	var all []*figure
	for _, state := range []struct {
		name string
		of   func(*way) *times
	}{
		{"warm", func(w *way) *times { return &w.warm }},
		{"cold", func(w *way) *times { return &w.cold }},
	} {
		for _, ours := range []*way{local, remote} {
			t := state.of(ours)
			others := []*way{bare, stock, podman}
			if ours == remote {
				others = append(others, stockRemote)
			}
			for _, other := range others {
				o := state.of(other)
				first := &figure{What: ours.name + ", " + state.name + ": first answer", BesideWhat: other.name, Cryo: t.first, Beside: o.first}
				filled := &figure{What: ours.name + ", " + state.name + ": filled", BesideWhat: other.name, Cryo: t.filled, Beside: o.filled}
				if other == bare {
					first.Aim, filled.Aim = aim{Most: 0.5}, aim{Ratio: 0.5}
				}
				for _, f := range []*figure{first, filled} {
					f.Case, f.Subject, f.Unit, f.NotRun, f.BesideNotRun = "restore", s.name(), "s", t.notRun, o.notRun
					all = append(all, f)
				}
			}
		}
	}
	return all
}
