package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// runner hands rounds to workers.
type runner struct {
	settings
	table      *table
	next       atomic.Int64
	until      time.Time
	violations atomic.Int64

	mu    sync.Mutex
	usual map[string]time.Duration // guarded by mu; how long operations take, once the first worker knows
}

// run gives the number of rounds with a violation.
func run(ctx context.Context, s settings) (int, error) {
	r := &runner{settings: s, table: newTable()}
	r.next.Store(int64(s.round))
	fmt.Printf("seed %d, %d workers\n", s.seed, s.workers)
	first, err := r.open(ctx, r.only.disk(s.round))
	if err != nil {
		return 0, err
	}
	began := time.Now()
	r.until = began.Add(s.length)
	var all sync.WaitGroup
	errs := make([]error, s.workers)
	for n := range s.workers {
		all.Add(1)
		go func() {
			defer all.Done()
			w := first
			if n > 0 {
				w = nil
			}
			errs[n] = r.work(ctx, n, w)
		}()
	}
	all.Wait()
	about := fmt.Sprintf("Seed %d, %d workers, %s", s.seed, s.workers, time.Since(began).Round(time.Second))
	if s.words != "" {
		about += ", only " + s.words
	}
	report := r.table.markdown(about)
	fmt.Print("\n" + report)
	if s.out != "" {
		errs = append(errs, os.WriteFile(s.out, []byte(report), 0o644))
	}
	return int(r.violations.Load()), errors.Join(errs...)
}

// open makes a world. The first one rehearses.
func (r *runner) open(ctx context.Context, disk bool) (*world, error) {
	w, err := openWorld(ctx, r.store, r.only.gpus(), disk)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	known := r.usual != nil
	maps.Copy(w.usual, r.usual)
	r.mu.Unlock()
	if known {
		return w, nil
	}
	if err := w.rehearse(ctx, r.only); err != nil {
		return nil, errors.Join(err, w.close())
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.usual = maps.Clone(w.usual)
	return w, nil
}

// work does rounds until the time is over. After a violation, or an error of the harness's own, all begins anew.
func (r *runner) work(ctx context.Context, n int, w *world) (err error) {
	failures := 0
	for ctx.Err() == nil && failures < 5 {
		number := int(r.next.Add(1) - 1)
		if time.Now().After(r.until) || r.rounds > 0 && number >= r.round+r.rounds {
			break
		}
		c := choose(r.seed, number, r.only)
		if w != nil && c.Disk != (w.disks != nil) {
			if err := w.close(); err != nil {
				fmt.Printf("worker %d: %v\n", n, err)
			}
			w = nil
		}
		if w == nil {
			if w, err = r.open(ctx, c.Disk); err != nil {
				return err
			}
		}
		round := newRound(w, operationOf(c.Operation), c)
		if r.verbose {
			fmt.Printf("worker %d begins %d: %s\n", n, number, c)
		}
		failed := round.run(ctx)
		if ctx.Err() != nil {
			break
		}
		failures = r.report(ctx, n, round, failed, failures)
		if failed != nil || len(round.violations) > 0 {
			err = w.close()
			w = nil
			if err != nil {
				fmt.Printf("worker %d: %v\n", n, err)
			}
		}
	}
	if failures >= 5 {
		err = fmt.Errorf("worker %d has failed %d times in a row", n, failures)
	}
	if w != nil {
		err = errors.Join(err, w.close())
	}
	return err
}

func operationOf(name string) *operation {
	for _, o := range operations {
		if o.name == name {
			return o
		}
	}
	panic("no operation " + name)
}

// report prints a round and counts it; it gives how many have failed in a row by an error of the harness.
func (r *runner) report(ctx context.Context, worker int, round *round, failed error, failures int) int {
	took := time.Since(round.began)
	outcome := round.verdict.outcome
	if len(round.violations) > 0 {
		outcome = violation
	}
	hit := ""
	if !round.hit {
		hit = " (not hit)"
	}
	c := round.choice
	fmt.Printf("%s %d/%d %s%s: %s, exit %d, %.1f s\n", time.Now().Format("15:04:05"), worker, c.Round, c, hit, outcome, round.result.Code, took.Seconds())
	if r.verbose {
		fmt.Print(round.text())
	}
	if failed == nil && len(round.violations) == 0 {
		r.table.add(c, round.hit, outcome, took)
		return 0
	}
	dir, err := round.keep(ctx, r.evidence)
	if err != nil {
		fmt.Println("keep evidence:", err)
	}
	if failed != nil {
		fmt.Printf("  the harness failed: %v\n  kept in %s\n", failed, dir)
		return failures + 1
	}
	r.table.add(c, round.hit, outcome, took)
	r.violations.Add(1)
	only := ""
	if r.words != "" {
		only = " --only " + r.words
	}
	fmt.Printf("  VIOLATION: %s\n  %s\n  kept in %s; again: --seed %d --round %d%s\n", strings.Join(round.violations, "\n  VIOLATION: "),
		c, dir, c.Seed, c.Round, only)
	return 0
}
