package main

import (
	"context"
	"errors"

	"github.com/cryo-project/cryo/integration/lab"
)

// push measures the time until a snapshot is in a registry, which nothing of it was in, beside what no way of doing it could be below: the
// slower of hashing as many bytes on all cores, and of sending them to the same registry as one blob.
func (b *bench) push(ctx context.Context, s subject) error {
	const bound = "slower of hashing on all cores and one blob to the registry"
	at := &figure{Case: "push", What: "checkpoint --push", BesideWhat: bound, Aim: aim{Ratio: 1.3}}
	after := &figure{Case: "push", What: "checkpoint, then push", BesideWhat: bound}
	hash := &figure{Case: "push", What: "(hashing as many bytes on all cores)"}
	blob := &figure{Case: "push", What: "(one blob of as many bytes to the registry)"}
	all := []*figure{at, after, hash, blob}
	for _, f := range all {
		f.Subject, f.Unit = s.name(), "s"
	}
	defer b.report.add(all...)
	round := func(c *container) error {
		ref := b.registry.Reference("bench/push:" + c.id)
		t, elapsed, err := b.checkpoint(ctx, c, ref, "--leave-running", "--push", "--plain-http")
		if err != nil {
			return err
		}
		at.Cryo = append(at.Cryo, elapsed)
		if err := b.afresh(ctx, c.host); err != nil {
			return err
		}
		_, first, err := b.checkpoint(ctx, c, ref, "--leave-running")
		if err != nil {
			return err
		}
		second, err := b.timed(ctx, c.host, "cryo", "push", "--plain-http", ref)
		if err != nil {
			return err
		}
		after.Cryo = append(after.Cryo, first+second)
		if err := b.afresh(ctx, c.host); err != nil {
			return err
		}
		h := hashing(t.Size)
		r, err := b.sending(ctx, c.host, t.Size)
		if err != nil {
			return err
		}
		hash.Cryo, blob.Cryo = append(hash.Cryo, h), append(blob.Cryo, r)
		at.Beside, after.Beside = append(at.Beside, max(h, r)), append(after.Beside, max(h, r))
		return nil
	}
	for n := 0; n < b.rounds && (n == 0 || !b.late()); n++ {
		if err := b.with(ctx, cryoRuntime, s, round); err != nil {
			return err
		}
		if err := b.afresh(ctx, b.a); err != nil {
			return err
		}
	}
	return nil
}

// afresh empties a host's stores and the registry, and writes out what is to be written.
func (b *bench) afresh(ctx context.Context, h *lab.Host) error {
	return errors.Join(empty(ctx, h), b.emptyRegistry(ctx), b.settle())
}
