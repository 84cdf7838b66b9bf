package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// restores is how many follow a prewarm.
const restores = 10

// prewarm measures the first answers of restores of a snapshot that "cryo prewarm" has made ready on the second host.
func (b *bench) prewarm(ctx context.Context, s subject) error {
	f := &figure{Case: "prewarm", Subject: s.name(), What: fmt.Sprintf("first answer of each of %d restores", restores), Unit: "s", Aim: aim{Most: 0.5}}
	defer func() { b.report.add(f) }()
	// Of a command that it does not have, cryo shows the help for all.
	if help := b.b.Cryo(ctx, "prewarm", "--help"); help.Code != 0 || !strings.Contains(help.Stdout, "cryo prewarm REF") {
		f.NotRun = "this cryo has no prewarm"
		return nil
	}
	c, err := b.container(ctx, b.a, cryoRuntime, s)
	if err != nil {
		return err
	}
	ref := b.registry.Reference("bench/prewarm:" + c.id)
	_, _, err = b.checkpoint(ctx, c, ref, "--push", "--plain-http")
	if err := errors.Join(err, c.remove(ctx)); err != nil {
		return err
	}
	took, err := b.timed(ctx, b.b, "cryo", "prewarm", ref, "--plain-http")
	if err != nil {
		return err
	}
	f.Note = "prewarm itself took " + quantity(took, "s")
	for range restores {
		first, _, err := b.answer(ctx, b.cryoAttempt(b.b, c.life, ref, "--pull", "missing", "--plain-http"))
		if err != nil {
			return err
		}
		f.Cryo = append(f.Cryo, first)
	}
	f.Note += "; one after the other: " + each(f.Cryo)
	return b.b.Cryo(ctx, "prewarm", "rm", ref).Err()
}

// each is all rounds in their order.
func each(all []float64) string {
	var words []string
	for _, n := range all {
		words = append(words, quantity(n, "s"))
	}
	return strings.Join(words, ", ")
}
