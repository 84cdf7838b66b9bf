// Gpu takes containers with NVIDIA GPUs through checkpoints and restores on the machine it runs on, measures, and writes what
// came of it. The script run beside it prepares the machine and starts it; "run --list" lists the cases.
//
// Two hosts of package lab stand for two machines: a snapshot is taken on the first, goes through a registry, and is restored on
// the second. Results are written after every case, so that nothing is lost with the machine.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// settings are the flags.
type settings struct {
	out      string        // directory for results
	programs string        // directory with what containers run
	store    string        // directory of the lab
	budget   time.Duration // for all
	names    []string      // of the cases; empty: all that this machine can run
	sizes    []int         // GiB of device memory
	live     int           // GiB up to which checkpoints are also taken with the container left running
	keeper   keeperSettings
}

func main() {
	lab.Main()
	growing()
	s, list, merge := parse()
	var err error
	switch {
	case list:
		printCases(cases(s))
	case len(merge) > 0:
		err = mergeReports(s.out, merge)
	default:
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		err = run(ctx, s)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "gpu:", err)
		os.Exit(1)
	}
}

func parse() (s settings, list bool, merge []string) {
	names := flag.String("cases", "", "run these, separated by commas (default: all)")
	sizes := flag.String("sizes", "1,16,40", "GiB of device memory, separated by commas")
	flag.StringVar(&s.out, "out", "results", "directory for results.json, results.md and logs")
	flag.StringVar(&s.programs, "programs", "", "directory with the programs of the containers")
	flag.StringVar(&s.store, "store", "", "directory of the lab: where hosts, images and the registry are (default: environment CRYO_LAB)")
	flag.DurationVar(&s.budget, "budget", 24*time.Hour, "begin no case that would not end by then")
	flag.IntVar(&s.live, "live-up-to", 40, "GiB up to which checkpoints are also taken with the container left running")
	keeper := s.keeper.flags()
	flag.BoolVar(&list, "list", false, "list the cases")
	merged := flag.Bool("merge", false, "make one report of the results.json named as arguments, and write it to --out")
	flag.Parse()
	if *merged {
		return s, false, flag.Args()
	}
	if flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "gpu: what is", flag.Arg(0), "for?")
		os.Exit(2)
	}
	s.names = fields(*names)
	s.sizes = gibibytesOf(*sizes)
	keeper()
	return s, list, nil
}

// gibibytesOf reads a list of sizes.
func gibibytesOf(list string) (sizes []int) {
	for _, f := range fields(list) {
		n, err := strconv.Atoi(f)
		if err != nil || n < 1 {
			fmt.Fprintln(os.Stderr, "gpu: no size:", f)
			os.Exit(2)
		}
		sizes = append(sizes, n)
	}
	return sizes
}

func fields(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
}

// closing is kept of the budget to end hosts and write results.
const closing = 15 * time.Second

// run runs the cases. An error means that there are no results, or that a case failed.
func run(ctx context.Context, s settings) error {
	if err := os.MkdirAll(s.out, 0o755); err != nil {
		return err
	}
	deadline := time.Now().Add(s.budget - closing)
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	report := &report{Began: time.Now().UTC().Truncate(time.Second)}
	chosen, err := choose(cases(s), s.names)
	if err != nil {
		return err
	}
	b, err := open(ctx, s, needGPU(chosen))
	report.Machine = b.machine
	if err != nil {
		report.add(&result{Case: "prepare", About: "hosts, registry, CDI", Verdict: failed, Why: err.Error(), Evidence: b.evidence("")})
		return errors.Join(err, report.write(s.out), b.close())
	}
	bad := 0
	for _, c := range chosen {
		r := b.try(ctx, c, deadline)
		report.Machine = b.machine // what was touched is told there
		report.add(r)
		fmt.Println(r)
		if r.Verdict == failed {
			bad++
		}
		if err := report.write(s.out); err != nil {
			return errors.Join(err, b.close())
		}
	}
	if err := b.close(); err != nil {
		return err
	}
	if bad > 0 {
		return fmt.Errorf("%d of %d cases failed, see %s", bad, len(chosen), filepath.Join(s.out, "results.md"))
	}
	return nil
}

// attempt runs a case, on fresh hosts where the one before has left none.
func (b *bench) attempt(ctx context.Context, c testCase, r *result) (err error) {
	defer func() {
		if p := recover(); p != nil { // the cases after it shall be run
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	if b.a == nil || b.b == nil {
		if err := b.boot(ctx); err != nil {
			return err
		}
	}
	if err := b.grow(ctx, c.memory); err != nil {
		return err
	}
	return c.run(ctx, b, r)
}

// try runs one case within its time. What a case that failed leaves behind must not harm the next, which gets fresh hosts.
func (b *bench) try(ctx context.Context, c testCase, deadline time.Time) *result {
	r := &result{Case: c.name, About: c.about, Times: map[string][]float64{}}
	estimate := time.Duration(c.seconds) * time.Second
	left := time.Until(deadline)
	switch {
	case c.gpus > len(b.machine.GPUs):
		return r.skip("needs %d GPUs, there are %d", c.gpus, len(b.machine.GPUs))
	case left < estimate:
		return r.skip("no time is left: it takes about %s", estimate)
	}
	fmt.Printf("%s: %s (about %s)\n", c.name, c.about, estimate)
	ctx, cancel := context.WithTimeout(ctx, min(left, 2*estimate+time.Minute))
	defer cancel()
	began := time.Now()
	err := b.attempt(ctx, c, r)
	r.Seconds = time.Since(began).Seconds()
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%w (after %s, %w)", err, time.Since(began).Round(time.Second), ctx.Err())
	}
	if err != nil {
		r.Verdict, r.Why, r.Evidence = failed, err.Error(), b.evidence(c.name)
	} else {
		r.Verdict = passed
	}
	cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	if err := b.tidy(cleanup, r); err != nil {
		r.Why = strings.TrimPrefix(r.Why+"\nafterwards: "+err.Error(), "\n")
		if r.Verdict == passed {
			r.Verdict = failed
		}
	}
	return r
}
