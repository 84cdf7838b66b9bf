package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cryo-project/cryo/integration/lab"
)

// other measures this cryo beside another one, whose programs are in the directory of --other, in turns: checkpoints of a container, and restores from the
// local store, from the registry and of what was prewarmed. Each has a new host, whose processes nobody measures meanwhile, and restores its own snapshot.
func (b *bench) other(ctx context.Context, s subject) (err error) {
	if b.otherPrograms == "" {
		b.report.add(&figure{Case: "other", Subject: s.name(), What: "checkpoint and restore", NotRun: "--other DIR names no other cryo"})
		return nil
	}
	dir, err := filepath.Abs(b.otherPrograms)
	if err != nil {
		return err
	}
	ours, err := b.otherHost(ctx)
	if err != nil {
		return err
	}
	theirs, err := b.otherHost(ctx, dir)
	if err != nil {
		return err
	}
	hosts := []*lab.Host{ours, theirs}
	defer func() { err = errors.Join(err, empty(ctx, ours), empty(ctx, theirs)) }()
	containers := map[*lab.Host]*container{}
	for _, host := range hosts {
		c, err := b.container(ctx, host, cryoRuntime, s)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, c.remove(ctx)) }()
		containers[host] = c
	}
	if err := b.otherCheckpoints(ctx, s, hosts, containers); err != nil {
		return err
	}
	return b.otherRestores(ctx, s, hosts, containers)
}

// otherCheckpoints takes snapshots of which neither the store nor the registry has anything. The hosts are this cryo's and the other's.
func (b *bench) otherCheckpoints(ctx context.Context, s subject, hosts []*lab.Host, containers map[*lab.Host]*container) error {
	pause := otherFigure(s, "checkpoint: longest pause the process sees")
	said := otherFigure(s, "checkpoint: what cryo reports as frozen")
	durable := otherFigure(s, "checkpoint: complete and durable")
	pushed := otherFigure(s, "checkpoint --push: in the registry")
	defer b.report.add(pause, said, durable, pushed)
	order := slices.Clone(hosts)
	for round := 0; round < b.rounds && (round == 0 || !b.late()); round++ {
		for _, host := range order {
			c := containers[host]
			add := func(f *figure, seconds float64) {
				if host == hosts[0] {
					f.Cryo = append(f.Cryo, seconds)
				} else {
					f.Beside = append(f.Beside, seconds)
				}
			}
			if err := b.afresh(ctx, host); err != nil {
				return err
			}
			t, took, gap, err := b.durableSnapshot(ctx, c) // which removes it
			if err != nil {
				return err
			}
			if err := b.afresh(ctx, host); err != nil {
				return err
			}
			_, sent, err := b.checkpoint(ctx, c, b.otherReference(c), "--leave-running", "--push", "--plain-http")
			if err != nil {
				return err
			}
			add(pause, gap)
			add(said, t.Freeze)
			add(durable, took)
			add(pushed, sent)
		}
		slices.Reverse(order)
	}
	return nil
}

// prewarmedCold is why there are no cold rounds of what was prewarmed, which is to be in memory.
const prewarmedCold = "prewarmed memory is in memory"

// otherRestores restores from the local store, from the registry, and what was prewarmed.
func (b *bench) otherRestores(ctx context.Context, s subject, hosts []*lab.Host, containers map[*lab.Host]*container) error {
	all := map[*lab.Host][]*way{}
	for _, host := range hosts {
		c := containers[host]
		ref := b.otherReference(c)
		// In the registry is that of one host, after the checkpoints.
		if _, _, err := b.checkpoint(ctx, c, ref, "--leave-running", "--push", "--plain-http"); err != nil {
			return err
		}
		fetching := []string{"--plain-http"}
		// Without it, what is still pulled when the next round begins would be found by it. Older ones always wait, and do not know it.
		if r := host.Cryo(ctx, "restore", "--help"); strings.Contains(r.Stdout, "--wait ") {
			fetching = append(fetching, "--wait")
		}
		restore := func(flags ...string) func() *attempt {
			return func() *attempt { return b.cryoAttempt(host, c.life, ref, flags...) }
		}
		local := &way{name: "restore, local", files: []string{host.CryoRoot()}, attempt: restore("--pull", "never")}
		remote := &way{name: "restore, registry", files: []string{filepath.Join(b.registry.Dir, "data")}, attempt: restore(fetching...)}
		remote.prepare = func() error { return errors.Join(empty(ctx, host), b.settle()) }
		prewarmed := &way{name: "restore, prewarmed", attempt: func() *attempt {
			a := restore("--pull", "never")()
			remove := a.remove
			a.remove = func(ctx context.Context) error {
				return errors.Join(remove(ctx), host.Cryo(ctx, "prewarm", "rm", ref).Err(), host.Cryo(ctx, "pull", "--plain-http", ref).Err())
			}
			return a
		}}
		prewarmed.prepare = func() error { return errors.Join(host.Cryo(ctx, "prewarm", "--plain-http", ref).Err(), b.settle()) }
		prewarmed.cold.notRun = prewarmedCold
		all[host] = []*way{local, remote, prewarmed}
	}
	ours, theirs := all[hosts[0]], all[hosts[1]]
	defer func() {
		for n := range ours {
			o, t := ours[n], theirs[n]
			b.report.add(otherTimes(s, o.name+", warm", &o.warm, &t.warm)...)
			if o.cold.notRun != prewarmedCold {
				b.report.add(otherTimes(s, o.name+", cold", &o.cold, &t.cold)...)
			}
		}
	}()
	order := slices.Clone(hosts)
	for round := 0; round < b.rounds && (round == 0 || !b.late()); round++ {
		for n := range ours {
			for _, host := range order {
				if err := b.bringBackBoth(ctx, all[host][n]); err != nil {
					return err
				}
			}
		}
		slices.Reverse(order)
	}
	return nil
}

func (b *bench) otherReference(c *container) string {
	return b.registry.Reference("bench/other:" + c.id)
}

func otherFigure(s subject, what string) *figure {
	return &figure{Case: "other", Subject: s.name(), What: what, Unit: "s", BesideWhat: "the other cryo"}
}

// otherTimes are the figures of restores.
func otherTimes(s subject, name string, ours, theirs *times) []*figure {
	first, filled := otherFigure(s, name+": first answer"), otherFigure(s, name+": filled")
	first.Cryo, first.Beside, filled.Cryo, filled.Beside = ours.first, theirs.first, ours.filled, theirs.filled
	for _, f := range []*figure{first, filled} {
		f.NotRun, f.BesideNotRun = ours.notRun, theirs.notRun
	}
	return []*figure{first, filled}
}

// otherHost starts a host on which programs in path come before this cryo's.
func (b *bench) otherHost(ctx context.Context, path ...string) (*lab.Host, error) {
	b.started++
	h, err := b.lab.Host(ctx, fmt.Sprintf("other%d", b.started), lab.HostOptions{Path: path})
	if err != nil {
		return nil, err
	}
	return h, h.Import(ctx)
}
