package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// startCases compare the start of a server with its restores, up to the first token.
func startCases() []testCase {
	return []testCase{
		{"keeper-start-8b", "a model of 8 billion parameters, cold from files in memory: from the command to the first right token", 1, 150, 100,
			func(ctx context.Context, b *bench, r *result) error {
				files := filepath.Join(b.programs, "weights-8b")
				defer func() { _ = os.RemoveAll(files) }()
				save := exec.CommandContext(ctx, python3(), filepath.Join(b.programs, "torch_inference.py"), "--save", files)
				if err := lab.Finish(save).Err(); err != nil {
					return err
				}
				return b.starts(ctx, r, "/weights", "--mount", "type=bind,src="+files+",dst=/weights,options=rbind:ro")
			}},
		{"keeper-start-32b", "a model of 32 billion parameters, cold without files, its weights made on the GPU: from the command to the first right token", 1, 300, 200,
			func(ctx context.Context, b *bench, r *result) error { return b.starts(ctx, r, "32b") }},
	}
}

// starts measures, from the start of a command to the first right token: the server's own start by ctr, and its restores from the local store, from device
// memory that was prewarmed, and from the registry with nothing of it on the host.
func (b *bench) starts(ctx context.Context, r *result, model string, flags ...string) error {
	c := b.python(r.Case, "torch_inference.py", model).keeper()
	c.flags = append(c.flags, flags...)
	defer b.clear(ctx, c)
	if err := b.toToken(ctx, r, c, b.a, "cold", func() error { return c.start(ctx) }); err != nil {
		return err
	}
	if _, err := c.check(ctx, b.a, r, "started"); err != nil {
		return err
	}
	ref := b.registry.Reference("gpu/" + c.id + ":end")
	t, err := b.checkpoint(ctx, r, c, ref, "end", byKeeper...)
	if err != nil {
		return err
	}
	r.Snapshot = map[string]int64{"memory": t.Memory, "size": t.Size}
	if err := b.carry(ctx, r, c, ref); err != nil {
		return err
	}
	for _, way := range []struct {
		name   string
		before []string
	}{{"local", nil}, {"prewarmed", []string{"prewarm", "--gpu", ref, "--plain-http"}}, {"registry", []string{"rm", ref}}} {
		c.remove(ctx, b.b)
		if way.before != nil {
			if err := b.b.Cryo(ctx, way.before...).Err(); err != nil {
				return err
			}
		}
		restore := func() error {
			_, _, err := b.restored(ctx, r, c, ref)
			return err
		}
		if err := b.toToken(ctx, r, c, b.b, way.name, restore); err != nil {
			return fmt.Errorf("%s: %w", way.name, err)
		}
		if _, err := c.check(ctx, b.b, r, way.name); err != nil {
			return err
		}
	}
	cold, _ := median(r.Times["token.cold"])
	for _, way := range []string{"local", "prewarmed", "registry"} {
		took, _ := median(r.Times["token."+way])
		r.checked("first right token after %.2f s, %s; cold %.2f s, %.1f times as long", took, way, cold, cold/took)
	}
	return nil
}

// toToken writes down how long it took to start a server and have a token of it.
func (b *bench) toToken(ctx context.Context, r *result, c *container, h *lab.Host, way string, start func() error) error {
	began := time.Now()
	if err := start(); err != nil {
		return err
	}
	a, err := c.ask(ctx, h, 0, "token")
	if err != nil {
		return err
	}
	if !a.OK {
		return fmt.Errorf("not the token that it was: %s", a.text)
	}
	r.took("token."+way, time.Since(began).Seconds())
	return nil
}
