package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cryo-project/cryo/runtime/gpu/library"
)

// cost is what something takes without the library and with it, seconds.
type cost struct {
	What    string  `json:"what"`
	Without float64 `json:"without"`
	With    float64 `json:"with"`
	// Ratio is that of the median with to the median without, of all turns; Noise is that of two containers without to each other, or with, whichever
	// is further from 1.
	Ratio float64 `json:"ratio"`
	Noise float64 `json:"noise"`
	Turns int     `json:"turns"`
}

// runKeeperSteady measures what a program pays while nothing is saved: in four containers, of which two have the library, in turn.
func runKeeperSteady(ctx context.Context, b *bench, r *result) error {
	for _, p := range []struct {
		program []string
		each    time.Duration // of a measurement
		most    time.Duration
	}{
		{[]string{"/gpu/steady"}, 600 * time.Millisecond, 18 * time.Second},
		{[]string{python3(), "/gpu/torch_steady.py"}, time.Second, 30 * time.Second},
	} {
		if err := b.steady(ctx, r, p.each, p.most, func(id string) *container { return b.container(id, p.program...) }, (*container).keeper); err != nil {
			return err
		}
	}
	return nil
}

// steady measures one program without the library, and with it as a container asks for that by with. Containers differ a little from each other whatever they have, so there are two of each kind.
func (b *bench) steady(ctx context.Context, r *result, each, most time.Duration, made func(id string) *container, with func(*container) *container) error {
	var all []*container
	for _, name := range []string{"without-1", "with-1", "without-2", "with-2"} {
		c := made(r.Case + "-" + name)
		if strings.HasPrefix(name, "with-") {
			with(c)
		}
		all = append(all, c)
		defer c.remove(context.WithoutCancel(ctx), b.a)
	}
	var started errgroup.Group
	for _, c := range all {
		started.Go(func() error { return c.start(ctx) })
	}
	if err := started.Wait(); err != nil {
		return err
	}
	for i, c := range all {
		if has, err := b.hasLibrary(ctx, c); err != nil || has != (i%2 == 1) {
			return errors.Join(err, fmt.Errorf("%s has the library loaded: %t", c.id, has))
		}
	}
	seen := make([]map[string][]float64, len(all)) // of each container
	turns, err := cycles(ctx, 100, most, func(int) error {
		for i, c := range all {
			a, err := c.ask(ctx, b.a, 0, fmt.Sprintf("measure %.2f", each.Seconds()))
			if err == nil && !a.OK {
				err = fmt.Errorf("%s does not measure: %s", c.id, a.text)
			}
			if err != nil {
				return err
			}
			if seen[i] == nil {
				seen[i] = map[string][]float64{}
			}
			for what, value := range a.State {
				if took, ok := value.(float64); ok && !slices.Contains([]string{"seq", "pid", "ticks"}, what) {
					seen[i][what] = append(seen[i][what], took)
				}
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	costs := costsOf(seen)
	if slices.ContainsFunc(costs, func(c cost) bool { return c.What == "launch" }) {
		for _, i := range []int{1, 3} {
			c, err := b.gate(ctx, all[i])
			if err != nil {
				return err
			}
			costs = append(costs, c)
		}
	}
	if len(costs) == 0 {
		return fmt.Errorf("%s has measured nothing", strings.Join(all[0].program, " "))
	}
	r.Costs = append(r.Costs, costs...)
	for _, c := range costs {
		r.checked("%s: %s without, %s with the library, %.3f times; the same kind by itself %.3f times; %d turns", c.What, brief(c.Without), brief(c.With),
			c.Ratio, c.Noise, turns)
	}
	return nil
}

// gate compares launches through the library and past it in one process: containers differ by more than that.
func (b *bench) gate(ctx context.Context, c *container) (cost, error) {
	a, err := c.ask(ctx, b.a, 0, "gate 3")
	if err != nil {
		return cost{}, err
	}
	var m struct {
		Past, Through, Ratio, Noise float64
		Rows                        int
	}
	if err := json.Unmarshal([]byte(a.text), &m); err != nil || !a.OK || m.Rows == 0 {
		return cost{}, errors.Join(err, fmt.Errorf("%s does not compare launches: %s", c.id, a.text))
	}
	return cost{What: "launch, past the library and through it, in one process", Without: m.Past, With: m.Through, Ratio: m.Ratio, Noise: m.Noise, Turns: m.Rows}, nil
}

// hasLibrary tells whether a container's first process has loaded what hands device memory over.
func (b *bench) hasLibrary(ctx context.Context, c *container) (bool, error) {
	pid, _, err := b.a.Task(ctx, c.id)
	if err != nil {
		return false, err
	}
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	return strings.Contains(string(maps), library.File), err
}

// costsOf compares four containers: without, with, without, with.
func costsOf(seen []map[string][]float64) (all []cost) {
	var names []string
	for what := range seen[0] {
		names = append(names, what)
	}
	slices.Sort(names)
	for _, what := range names {
		of := func(numbers ...int) float64 {
			var times []float64
			for _, n := range numbers {
				times = append(times, seen[n][what]...)
			}
			m, _ := median(times)
			return m
		}
		if min(of(0), of(1), of(2), of(3)) <= 0 {
			continue // nothing was measured
		}
		c := cost{What: what, Without: of(0, 2), With: of(1, 3), Turns: len(seen[0][what])}
		c.Ratio, c.Noise = c.With/c.Without, of(2)/of(0)
		if other := of(3) / of(1); further(other) > further(c.Noise) {
			c.Noise = other
		}
		all = append(all, c)
	}
	return all
}

// further is how far a ratio is from 1, whichever side it is on.
func further(ratio float64) float64 { return max(ratio, 1/ratio) }

// brief prints seconds that are few.
func brief(seconds float64) string {
	if seconds < 1e-3 {
		return fmt.Sprintf("%.3f µs", 1e6*seconds)
	}
	return fmt.Sprintf("%.3f ms", 1e3*seconds)
}
