package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cryo-project/cryo/image/format"
)

// slowLine is a line to a registry, and how much memory a container has whose restore over it takes some seconds.
type slowLine struct {
	rate int64 // bytes a second
	of   subject
}

var slowLines = []slowLine{{2e6, subject{mib: 16}}, {20e6, subject{mib: 128}}, {200e6, subject{mib: 512}}}

// lines measures restores over lines of some rates, of a container that reads all of its memory as soon as it answers, page by page in an order that nobody can guess.
func (b *bench) lines(ctx context.Context) error {
	for _, l := range slowLines {
		if err := b.overLine(ctx, l); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) overLine(ctx context.Context, l slowLine) error {
	c, err := b.container(ctx, b.a, cryoRuntime, l.of)
	if err != nil {
		return err
	}
	path := "bench/line:" + c.id
	t, _, err := b.checkpoint(ctx, c, b.registry.Reference(path), "--push", "--plain-http")
	if err := errors.Join(err, c.remove(ctx)); err != nil {
		return err
	}
	line, err := b.lab.Line(ctx, b.registry)
	if err != nil {
		return err
	}
	defer line.Close()
	line.Rate.Store(l.rate)
	first := &figure{What: "first answer"}
	longest := &figure{What: "longest standstill while all memory is read in no order", BesideWhat: "1 MiB on that line"}
	all := &figure{What: "all here", BesideWhat: "the snapshot on that line"}
	received := &figure{What: "bytes received", BesideWhat: "the snapshot's", Unit: "B"}
	figures := []*figure{first, longest, all, received}
	for _, f := range figures {
		f.Case, f.Subject = "restore", fmt.Sprintf("%s, line of %s/s", l.of.name(), quantity(float64(l.rate), "B"))
		if f.Unit == "" {
			f.Unit = "s"
		}
	}
	defer b.report.add(figures...)
	for n := 0; n < b.rounds && (n == 0 || !b.late()); n++ {
		if err := errors.Join(empty(ctx, b.b), b.settle()); err != nil {
			return err
		}
		line.Received.Store(0)
		r, err := b.scatter(ctx, b.cryoAttempt(b.b, c.life, line.Address+"/"+path, "--plain-http", "--wait"))
		if err != nil {
			return err
		}
		first.Cryo, longest.Cryo, all.Cryo = append(first.Cryo, r.first), append(longest.Cryo, r.longest), append(all.Cryo, r.all)
		received.Cryo = append(received.Cryo, float64(line.Received.Load()))
		longest.Beside = append(longest.Beside, format.MaxFrame/float64(l.rate))
		all.Beside = append(all.Beside, float64(t.Size)/float64(l.rate))
		received.Beside = append(received.Beside, float64(t.Size))
	}
	return nil
}

// scattered is what was measured of a restore, seconds.
type scattered struct{ first, longest, all float64 }

// scatter brings a process back that reads all of its memory while it is pulled.
func (b *bench) scatter(ctx context.Context, a *attempt) (s scattered, err error) {
	asking, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan error, 1)
	began := time.Now()
	go func() {
		err := a.command(ctx)
		s.all = time.Since(began).Seconds() - a.way
		if err != nil {
			cancel(err)
		}
		done <- err
	}()
	answered, err := a.process.await(asking, began)
	if err == nil {
		answer, failed := a.process.ask(asking, "scatter")
		s.longest, _ = answer.State["longest"].(float64)
		err = failed
	}
	if failed := <-done; failed != nil {
		err = failed // the rest follows from it
	}
	if err == nil {
		_, err = a.process.ask(ctx, "verify")
	}
	s.first = answered.Seconds() - a.way
	return s, errors.Join(err, a.remove(ctx))
}
