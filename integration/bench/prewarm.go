package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// restores is how many follow a prewarm.
const restores = 10

// prewarm measures restores of a snapshot that "cryo prewarm" has made ready on the second host, in turns with restores of the same
// from the first host's local store.
func (b *bench) prewarm(ctx context.Context, s subject) error {
	what := fmt.Sprintf("each of %d restores: ", restores)
	first := &figure{What: what + "first answer", BesideWhat: "cryo restore, local, warm", Aim: aim{Most: 0.5}}
	filled := &figure{What: what + "filled", BesideWhat: first.BesideWhat}
	firstCold := &figure{What: first.What, BesideWhat: "cryo restore, local, cold", Aim: first.Aim}
	filledCold := &figure{What: filled.What, BesideWhat: firstCold.BesideWhat}
	all := []*figure{first, filled, firstCold, filledCold}
	defer func() {
		for _, f := range all {
			f.Case, f.Subject, f.Unit = "prewarm", s.name(), "s"
			b.report.add(f)
		}
	}()
	c, err := b.container(ctx, b.a, cryoRuntime, s)
	if err != nil {
		return err
	}
	ref := b.registry.Reference("bench/prewarm:" + c.id)
	_, _, err = b.checkpoint(ctx, c, ref, "--push", "--plain-http")
	if err := errors.Join(err, c.remove(ctx)); err != nil {
		return err
	}
	took, err := b.timed(ctx, b.b, "cryo", "prewarm", ref, "--plain-http", "--memory", fmt.Sprint(2*s.bytes()+1<<30))
	if err != nil {
		return err
	}
	local := &way{files: []string{b.a.CryoRoot()}, attempt: func() *attempt { return b.cryoAttempt(b.a, c.life, ref, "--pull", "never") }}
	for range restores {
		one, whole, err := b.answer(ctx, b.cryoAttempt(b.b, c.life, ref, "--pull", "missing", "--plain-http"))
		if err != nil {
			return err
		}
		for _, f := range []*figure{first, firstCold} {
			f.Cryo = append(f.Cryo, one)
		}
		for _, f := range []*figure{filled, filledCold} {
			f.Cryo = append(f.Cryo, whole)
		}
		if len(first.Cryo) > b.rounds {
			continue
		}
		for _, t := range []*times{&local.warm, &local.cold} {
			if t.notRun != "" {
				continue
			}
			if err := b.bringBack(ctx, local, t); ctx.Err() != nil {
				return err
			} else if err != nil {
				t.notRun = reason(err)
			}
		}
	}
	first.Beside, first.BesideNotRun = local.warm.first, local.warm.notRun
	filled.Beside, filled.BesideNotRun = local.warm.filled, local.warm.notRun
	firstCold.Beside, firstCold.BesideNotRun = local.cold.first, local.cold.notRun
	filledCold.Beside, filledCold.BesideNotRun = local.cold.filled, local.cold.notRun
	first.Note = "prewarm itself took " + quantity(took, "s") + "; one after the other: " + each(first.Cryo)
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
