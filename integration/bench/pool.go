package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// pool measures how soon a process answers whose container is taken out of a pool of one, beside an ordinary restore from the local store and a cold start. Each round waits until the pool is full again, and
// nothing fills it.
func (b *bench) pool(ctx context.Context, s subject) (err error) {
	f := newPoolFigures(s)
	defer func() { b.report.add(f.all()...) }()
	source, err := b.container(ctx, b.a, cryoRuntime, s)
	if err != nil {
		return err
	}
	// A name without a registry: nothing is asked for on the network.
	ref := "bench/pool:" + source.id
	_, _, err = b.checkpoint(ctx, source, ref)
	if err := errors.Join(err, source.remove(ctx)); err != nil {
		return err
	}
	ordinary := "bench/ordinary:" + source.id // a pool is a name's
	if err := errors.Join(b.a.Cryo(ctx, "tag", ref, ordinary).Err(), b.a.Cryo(ctx, "prewarm", ordinary).Err(), b.a.Cryo(ctx, "prewarm", "--paused", "1", ref).Err()); err != nil {
		return err
	}
	defer func() {
		ctx := context.WithoutCancel(ctx)
		err = errors.Join(err, b.a.Cryo(ctx, "prewarm", "rm", "--all").Err(), b.a.Cryo(ctx, "rm", ref, ordinary).Err())
	}()
	ways := []func() error{
		func() error { return b.takeOne(ctx, f, source.life, ref, s) },
		func() error {
			a := b.cryoAttempt(b.a, source.life, ordinary, "--pull", "never")
			first, _, err := b.answer(ctx, a)
			f.restore.Beside = append(f.restore.Beside, first)
			return err
		},
		func() error { return b.coldStart(ctx, f, s) },
	}
	return b.inTurns(ways)
}

// poolFigures are those of one subject.
type poolFigures struct{ restore, cold, handout, shim, held, own *figure }

func newPoolFigures(s subject) poolFigures {
	const first = "cryo restore out of a pool: first answer"
	f := poolFigures{
		restore: &figure{What: first, Unit: "s", BesideWhat: "cryo restore, local and prewarmed"},
		cold:    &figure{What: first, Unit: "s", BesideWhat: "ctr run, runc, first answer with all its memory written"},
		handout: &figure{What: "from the request to containerd until the container runs", Unit: "s"},
		shim:    &figure{What: "the shim's part of that", Unit: "s", Aim: aim{Most: 0.01}},
		held:    &figure{What: "proportional set size of a paused container", Unit: "B", BesideWhat: "its memory"},
		own:     &figure{What: "that of its shim", Unit: "B"},
	}
	for _, of := range f.all() {
		of.Case, of.Subject = "pool", s.name()
	}
	return f
}

func (f poolFigures) all() []*figure {
	return []*figure{f.restore, f.cold, f.handout, f.shim, f.held, f.own}
}

// takeOne is a round of the pool.
func (b *bench) takeOne(ctx context.Context, f poolFigures, life, ref string, s subject) error {
	c, pid, err := b.pooled(ctx, ref)
	if err != nil {
		return err
	}
	c.life = life
	f.held.Cryo, f.held.Beside = append(f.held.Cryo, float64(pss(read(fmt.Sprintf("/proc/%d/smaps_rollup", pid))))), append(f.held.Beside, float64(s.bytes()))
	f.own.Cryo = append(f.own.Cryo, float64(pss(read(fmt.Sprintf("/proc/%d/smaps_rollup", parent(pid))))))
	var said struct {
		Container string
		Pool      struct {
			Taken   bool
			Reason  string
			Handout float64
		}
	}
	command := func(ctx context.Context) error {
		r := b.a.Cryo(ctx, "restore", ref, "--json")
		return errors.Join(r.Err(), json.Unmarshal([]byte(r.Stdout), &said))
	}
	first, _, err := b.answer(ctx, &attempt{process: &c.process, command: command, remove: c.remove, way: b.way.Seconds()})
	if err != nil {
		return err
	}
	if !said.Pool.Taken || said.Container != c.id {
		return fmt.Errorf("%s was restored, and %s was in the pool: %s", said.Container, c.id, said.Pool.Reason)
	}
	shim, err := b.handedOut(c.id)
	if err != nil {
		return err
	}
	f.restore.Cryo, f.cold.Cryo = append(f.restore.Cryo, first), append(f.cold.Cryo, first)
	f.handout.Cryo, f.shim.Cryo = append(f.handout.Cryo, said.Pool.Handout), append(f.shim.Cryo, shim)
	return nil
}

// pooled waits until the pool has its container, and nothing fills it, and returns the container and its first process.
func (b *bench) pooled(ctx context.Context, ref string) (c *container, pid int, err error) {
	for ; ; time.Sleep(50 * time.Millisecond) {
		r := b.a.Cryo(ctx, "prewarm", "ls", "--json")
		var all []struct {
			Reference string
			Paused    []struct {
				Members []struct {
					Container string
					PID       int
				}
			}
		}
		if err := errors.Join(r.Err(), json.Unmarshal([]byte(r.Stdout), &all)); err != nil {
			return nil, 0, err
		}
		for _, w := range all {
			if strings.HasSuffix(w.Reference, ref) && len(w.Paused) == 1 && len(w.Paused[0].Members) == 1 && !b.refills() {
				m := w.Paused[0].Members[0]
				return b.handleOf(b.a, m.Container), m.PID, nil
			}
		}
		if ctx.Err() != nil {
			return nil, 0, context.Cause(ctx)
		}
	}
}

// refills reports whether a process fills a pool.
func (b *bench) refills() bool {
	for _, pid := range b.a.Processes() {
		if strings.Contains(read(fmt.Sprintf("/proc/%d/cmdline", pid)), "\x00--refill\x00") {
			return true
		}
	}
	return false
}

// parent returns the parent of a process; 0: it has ended.
func parent(pid int) (parent int) {
	for line := range strings.Lines(read(fmt.Sprintf("/proc/%d/status", pid))) {
		if n, _ := fmt.Sscanf(line, "PPid: %d", &parent); n == 1 {
			break
		}
	}
	return parent
}

// restoredLine is what the shim logs of a container that was handed out.
var restoredLine = regexp.MustCompile(`msg="a container was restored".* id=([^ ]+) .*seconds=([0-9.e-]+)`)

// handedOut returns how many seconds the shim took to hand a container out, by containerd's log.
func (b *bench) handedOut(id string) (float64, error) {
	for range 100 { // the log comes by a FIFO
		log, err := os.ReadFile(b.a.Log())
		if err != nil {
			return 0, err
		}
		for _, found := range restoredLine.FindAllStringSubmatch(string(log), -1) {
			if found[1] == id {
				return strconv.ParseFloat(found[2], 64)
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
	return 0, fmt.Errorf("%s does not say when %s was handed out", filepath.Base(b.a.Log()), id)
}

// coldStart is a round of "ctr run" by the stock shim.
func (b *bench) coldStart(ctx context.Context, f poolFigures, s subject) error {
	a, err := b.coldAttempt(ctx, s)
	if err != nil {
		return err
	}
	first, _, err := b.answer(ctx, a)
	f.cold.Beside = append(f.cold.Beside, first)
	return err
}
