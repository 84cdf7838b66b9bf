package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// other measures this cryo beside another one, whose programs are in the directory of --other, in turns: checkpoints of a container, and restores from the
// local store and from the registry. Each has a new host, whose processes nobody measures meanwhile, and takes the snapshot that it restores.
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

	pause := &figure{What: "checkpoint: longest pause the process sees"}
	durable := &figure{What: "checkpoint: complete and durable"}
	first := &figure{What: "restore, local, warm: first answer"}
	filled := &figure{What: "restore, local, warm: filled"}
	pulled := &figure{What: "restore, registry, warm: first answer"}
	whole := &figure{What: "restore, registry, warm: filled"}
	all := []*figure{pause, durable, first, filled, pulled, whole}
	defer func() {
		for _, f := range all {
			f.Case, f.Subject, f.Unit, f.BesideWhat = "other", s.name(), "s", "the other cryo"
		}
		b.report.add(all...)
	}()
	to := func(host *lab.Host, f *figure) *[]float64 {
		if host == ours {
			return &f.Cryo
		}
		return &f.Beside
	}
	containers, locals, remotes := map[*lab.Host]*container{}, map[*lab.Host]*way{}, map[*lab.Host]*way{}
	for _, host := range hosts {
		c, err := b.container(ctx, host, cryoRuntime, s)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, c.remove(ctx)) }()
		ref := b.registry.Reference("bench/other:" + c.id)
		if _, _, err := b.checkpoint(ctx, c, ref, "--leave-running", "--push", "--plain-http"); err != nil {
			return err
		}
		containers[host] = c
		locals[host] = &way{files: []string{host.CryoRoot()}, attempt: func() *attempt { return b.cryoAttempt(host, c.life, ref, "--pull", "never") }}
		remotes[host] = &way{files: []string{filepath.Join(b.registry.Dir, "data")}, attempt: func() *attempt { return b.cryoAttempt(host, c.life, ref, "--plain-http") },
			prepare: func() error { return errors.Join(host.Cryo(ctx, "rm", ref).Err(), b.settle()) }}
	}
	for round := 0; round < b.rounds && (round == 0 || !b.late()); round++ {
		for _, host := range hosts {
			took, gap, err := b.otherCheckpoint(ctx, containers[host], round)
			if err != nil {
				return err
			}
			*to(host, durable), *to(host, pause) = append(*to(host, durable), took), append(*to(host, pause), gap)
			local, remote := locals[host], remotes[host]
			if err := b.bringBack(ctx, local, &local.warm); err != nil {
				return err
			}
			if err := b.bringBack(ctx, remote, &remote.warm); err != nil {
				return err
			}
			*to(host, first), *to(host, filled) = local.warm.first, local.warm.filled
			*to(host, pulled), *to(host, whole) = remote.warm.first, remote.warm.filled
		}
		slices.Reverse(hosts)
	}
	return nil
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

// otherCheckpoint gives the time of a checkpoint and of a sync of the file system after it, and the pause that the process saw.
func (b *bench) otherCheckpoint(ctx context.Context, c *container, round int) (took, gap float64, err error) {
	if err := b.quiet(ctx, &c.process); err != nil {
		return 0, 0, err
	}
	ref := fmt.Sprintf("bench/once:%d", round)
	_, took, err = b.checkpoint(ctx, c, ref, "--leave-running")
	if err != nil {
		return 0, 0, err
	}
	synced := time.Now()
	if err := b.settle(); err != nil {
		return 0, 0, err
	}
	took += time.Since(synced).Seconds()
	gap, err = c.gap(ctx)
	return took, gap, errors.Join(err, c.host.Cryo(ctx, "rm", ref).Err())
}
