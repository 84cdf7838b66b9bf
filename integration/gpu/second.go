package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/cryo-project/cryo/integration/lab"
)

// mostNew is how much of a second snapshot may be new, as a share of the first.
const mostNew = 0.05

// stored is what is in a snapshot, and what a push of it has moved, bytes.
type stored struct {
	layers map[string]int64 // by digest
	pushed int64
	memory int64 // of the container
}

func (s stored) size() (all int64) {
	for _, n := range s.layers {
		all += n
	}
	return all
}

// second takes a snapshot of a server, has it serve 100 requests, and takes another whose parent is the first. What is new in that must be
// little, and the container that is restored from it right.
func (b *bench) second(ctx context.Context, r *result, layers int) error {
	const requests = 100
	c := b.python(r.Case, "torch_inference.py", strconv.Itoa(layers)).keeper()
	defer b.clear(ctx, c)
	refs := []string{b.registry.Reference("gpu/" + c.id + ":live"), b.registry.Reference("gpu/" + c.id + ":end")}
	if err := b.begin(ctx, r, c); err != nil {
		return err
	}
	first, err := b.snapshot(ctx, r, c, refs[0], "live", "--parent", "none")
	if err != nil {
		return err
	}
	if err := b.handed(ctx, r, c, refs[0]); err != nil {
		return err
	}
	a, err := c.ask(ctx, b.a, 0, fmt.Sprintf("requests %d", requests))
	if err != nil {
		return err
	}
	if !a.OK {
		return fmt.Errorf("it does not serve: %s", a.text)
	}
	r.checked("%s", short(a.text))
	second, err := b.snapshot(ctx, r, c, refs[1], "second", "--parent", refs[0])
	if err != nil {
		return err
	}
	if _, err := c.check(ctx, b.a, r, "left running"); err != nil {
		return err
	}
	var fresh int64
	for digest, n := range second.layers {
		if _, there := first.layers[digest]; !there {
			fresh += n
		}
	}
	r.Snapshot = map[string]int64{"memory": second.memory, "size": second.size(), "first": first.size(), "first pushed": first.pushed, "second": second.size(), "second new": fresh, "second pushed": second.pushed}
	kept, sent := float64(fresh)/float64(first.size()), float64(second.pushed)/float64(first.pushed)
	r.checked("of the second snapshot %d MiB are new, %.2f %% of the first's %d; pushed were %d MiB, %.2f %% of the first's %d",
		fresh>>20, 100*kept, first.size()>>20, second.pushed>>20, 100*sent, first.pushed>>20)
	if err := b.restoreSecond(ctx, r, c, refs[1]); err != nil {
		return err
	}
	if kept > mostNew || sent > mostNew {
		return fmt.Errorf("of the second snapshot %.1f %% are new, and %.1f %% were pushed: %.0f %% may be", 100*kept, 100*sent, 100*mostNew)
	}
	return nil
}

// snapshot takes one that leaves the container running, and pushes it.
func (b *bench) snapshot(ctx context.Context, r *result, c *container, ref, prefix string, flags ...string) (s stored, err error) {
	t, err := b.checkpoint(ctx, r, c, ref, prefix, append([]string{"--leave-running"}, flags...)...)
	if err != nil {
		return s, err
	}
	s.memory = t.Memory
	var inspected struct {
		Layers []struct {
			Digest string
			Size   int64
		}
	}
	if err := printed(b.a.Cryo(ctx, "inspect", ref, "--json"), &inspected); err != nil {
		return s, err
	}
	s.layers = map[string]int64{}
	for _, l := range inspected.Layers {
		s.layers[l.Digest] = l.Size
	}
	push := b.a.Cryo(ctx, "push", ref, "--plain-http", "--json")
	var pushed struct{ BytesMoved int64 }
	if err := printed(push, &pushed); err != nil {
		return s, err
	}
	r.took(prefix+".push", push.Elapsed.Seconds())
	s.pushed = pushed.BytesMoved
	if s.size() == 0 || s.pushed == 0 {
		return s, fmt.Errorf("snapshot %s: %d bytes, pushed %d", ref, s.size(), s.pushed)
	}
	return s, nil
}

// restoreSecond restores a pushed snapshot on the second host, which has nothing of it or its parent.
func (b *bench) restoreSecond(ctx context.Context, r *result, c *container, ref string) error {
	c.remove(ctx, b.a)
	pull := b.b.Cryo(ctx, "pull", ref, "--plain-http")
	if pull.Err() != nil {
		return pull.Err()
	}
	r.took("pull", pull.Elapsed.Seconds())
	if err := b.restore(ctx, r, c, ref); err != nil {
		return err
	}
	_, err := c.check(ctx, b.b, r, "restored from the second")
	return err
}

// printed reads what a command has printed as JSON.
func printed(run lab.Result, into any) error {
	if run.Err() != nil {
		return run.Err()
	}
	if err := json.Unmarshal([]byte(run.Stdout), into); err != nil {
		return fmt.Errorf("read what %s prints: %w", run.Command, err)
	}
	return nil
}
