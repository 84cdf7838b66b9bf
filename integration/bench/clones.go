package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// clonesAtOnce is how many containers are brought back, or started, at the same time.
const clonesAtOnce = 8

// clones measures restores of one snapshot at the same time from the local store, beside one restore alone and beside as many cold starts of the same program at the same time.
func (b *bench) clones(ctx context.Context, s subject) (err error) {
	f := newCloneFigures(s)
	defer func() { b.report.add(f.all()...) }()
	source, err := b.container(ctx, b.a, cryoRuntime, s)
	if err != nil {
		return err
	}
	ref := "bench/clones:" + source.id
	_, _, err = b.checkpoint(ctx, source, ref)
	if err := errors.Join(err, source.remove(ctx)); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.a.Cryo(context.WithoutCancel(ctx), "rm", ref).Err()) }()
	restored := func() (*attempt, error) { return b.cryoAttempt(b.a, source.life, ref, "--pull", "never"), nil }
	ways := []func() error{
		func() error {
			firsts, err := b.atOnce(ctx, clonesAtOnce, restored)
			f.add(firsts)
			return err
		},
		func() error {
			firsts, err := b.atOnce(ctx, 1, restored)
			f.median.Beside = append(f.median.Beside, firsts...)
			return err
		},
		func() error {
			firsts, err := b.atOnce(ctx, clonesAtOnce, func() (*attempt, error) { return b.coldAttempt(ctx, s) })
			if of, ok := spreadOf(firsts); ok {
				f.last.Beside = append(f.last.Beside, of.most)
			}
			return err
		},
	}
	return b.inTurns(ways)
}

// inTurns calls all of them in each round, each time another one first.
func (b *bench) inTurns(ways []func() error) error {
	for round := 0; round < b.rounds && (round == 0 || !b.late()); round++ {
		for i := range ways {
			if err := ways[(round+i)%len(ways)](); err != nil {
				return err
			}
		}
	}
	return nil
}

// cloneFigures are those of one subject.
type cloneFigures struct{ median, last *figure }

func newCloneFigures(s subject) cloneFigures {
	f := cloneFigures{
		median: &figure{What: "eight restores at once, local: median first answer", BesideWhat: "one alone"},
		last:   &figure{What: "eight restores at once, local: all have answered", BesideWhat: "eight ctr run at once, runc, each with all its memory written"},
	}
	for _, of := range f.all() {
		of.Case, of.Subject, of.Unit = "clones", s.name(), "s"
	}
	return f
}

func (f cloneFigures) all() []*figure { return []*figure{f.median, f.last} }

// add takes in a round of restores.
func (f cloneFigures) add(firsts []float64) {
	if of, ok := spreadOf(firsts); ok {
		f.median.Cryo, f.last.Cryo = append(f.median.Cryo, of.median), append(f.last.Cryo, of.most)
	}
}

// atOnce makes n attempts at the same time, and returns when the process of each has answered, in seconds. All have all their memory before one is removed.
func (b *bench) atOnce(ctx context.Context, n int, next func() (*attempt, error)) (firsts []float64, err error) {
	all, failures, firsts := make([]*attempt, n), make([]error, n), make([]float64, n)
	for i := range all {
		if all[i], err = next(); err != nil {
			return nil, err
		}
	}
	var work sync.WaitGroup
	b.peaks.off.Store(true) // with so many processes, watching their memory takes a tenth of two processors
	began := time.Now()
	for i, a := range all {
		work.Go(func() { firsts[i], failures[i] = b.first(ctx, a, began, nil) })
	}
	work.Wait()
	b.peaks.off.Store(false)
	for i, a := range all {
		work.Go(func() { failures[i] = errors.Join(failures[i], a.remove(ctx)) })
	}
	work.Wait()
	return firsts, errors.Join(failures...)
}

// coldAttempt is "ctr run" by the stock shim.
func (b *bench) coldAttempt(ctx context.Context, s subject) (*attempt, error) {
	flags, err := b.stockFlags()
	if err != nil {
		return nil, err
	}
	c := b.handle(b.a)
	args := append(append([]string{"run", "--detach", "--null-io", "--runtime", stockRuntime}, flags...), lab.ImageName, c.id)
	command := func(ctx context.Context) error { return b.a.Ctr(ctx, append(args, s.command("workload")...)...).Err() }
	return &attempt{process: &c.process, command: command, remove: c.remove, way: b.way.Seconds()}, nil
}
