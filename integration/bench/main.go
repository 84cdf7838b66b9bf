// Bench measures cryo beside the stock path, "ctr containers checkpoint" and "restore", and beside bare CRIU, on containers with the
// same memory, in turns in one run: "make bench". It prints a table and writes bench.json; README.md beside it says how to read them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/integration/lab"
)

// settings are the flags.
type settings struct {
	json     string // file
	picture  string // file; empty: none is drawn
	store    string // directory of the lab
	budget   time.Duration
	cases    []string
	subjects []subject
	rounds   int

	otherPrograms string // directory; empty: there is nothing to compare this cryo with
}

func main() {
	lab.Main()
	sendBlob()
	reap()
	// What whoever started us has open shall not be in the processes that CRIU dumps. An old kernel, which cannot do that, passes it on.
	_ = unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	s, list, merged := parse()
	var err error
	switch {
	case list:
		for _, c := range cases {
			fmt.Printf("%-10s %s\n", c.name, c.about)
		}
	case merged != nil:
		var p *report
		if p, err = merge(merged); err == nil {
			fmt.Print(p.text())
			err = p.write(s.json)
		}
		if err == nil && s.picture != "" {
			err = p.draw(s.picture)
		}
	default:
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		err = run(ctx, s)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		var missing *lab.MissingError
		if errors.As(err, &missing) {
			os.Exit(4)
		}
		os.Exit(1)
	}
}

// What a quick run and a full one measure, unless flags say otherwise.
const (
	quickSizes, quickRounds, quickBudget = "256,2048,2048m", 2, 10 * time.Minute
	fullSizes, fullRounds, fullBudget    = "256,2048,8192,2048m", 5, 24 * time.Hour
)

func parse() (s settings, list bool, merged []string) {
	full := flag.Bool("full", false, "all sizes and more rounds: --sizes "+fullSizes+" --rounds "+strconv.Itoa(fullRounds)+", and no --budget")
	sizes := flag.String("sizes", quickSizes, "MiB of memory of the containers, separated by commas; with m: 70 % zero, 15 % like code, 15 % random; else all random")
	names := flag.String("cases", "", "measure these, separated by commas (default: all)")
	flag.StringVar(&s.json, "json", "bench.json", "file for all figures and all rounds")
	flag.StringVar(&s.picture, "picture", "", "with --merge: draw freezes and first answers beside those of others into this file, as SVG")
	flag.IntVar(&s.rounds, "rounds", quickRounds, "how often each is measured, in turns; starts of containers ten times as often")
	flag.DurationVar(&s.budget, "budget", quickBudget, "begin nothing after that time; what is missing is reported as not run")
	flag.StringVar(&s.store, "store", "", "directory of the lab: where containers, snapshots and the registry are (default: environment CRYO_LAB, or /var/tmp/cryo-lab)")
	flag.StringVar(&s.otherPrograms, "other", "", "directory with cryo and containerd-shim-cryo-v1 of another commit, for the case other")
	flag.BoolVar(&list, "list", false, "list the cases")
	join := flag.Bool("merge", false, "make one report of those named as arguments, and write it to --json")
	flag.Parse()
	if s.picture != "" && !*join {
		fmt.Fprintln(os.Stderr, "bench: --picture draws what --merge has read")
		os.Exit(2)
	}
	if *join {
		return s, false, append([]string{}, flag.Args()...)
	}
	if *full {
		given := map[string]bool{}
		flag.Visit(func(f *flag.Flag) { given[f.Name] = true })
		if !given["sizes"] {
			*sizes = fullSizes
		}
		if !given["rounds"] {
			s.rounds = fullRounds
		}
		if !given["budget"] {
			s.budget = fullBudget
		}
	}
	var err error
	s.subjects, err = parseSubjects(*sizes)
	if s.cases = fields(*names); err == nil {
		err = checkCases(s.cases)
	}
	switch {
	case flag.NArg() > 0:
		err = fmt.Errorf("what is %s for?", flag.Arg(0))
	case err == nil && s.rounds < 1:
		err = fmt.Errorf("%d rounds", s.rounds)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(2)
	}
	return s, list, nil
}

func fields(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
}

func parseSubjects(sizes string) ([]subject, error) {
	var all []subject
	for _, f := range fields(sizes) {
		number, mixed := strings.CutSuffix(f, "m")
		mib, err := strconv.Atoi(number)
		if err != nil || mib < 1 || mib > 1<<20 {
			return nil, fmt.Errorf("no size: %s", f)
		}
		all = append(all, subject{mib, mixed})
	}
	return all, nil
}
