// Chaos breaks cryo at random and looks whether anything was lost: "make chaos". README.md beside it says how to read what it prints.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/integration/lab"
)

// settings are the flags.
type settings struct {
	seed     uint64
	length   time.Duration
	rounds   int
	round    int
	workers  int
	only     filter
	words    string // of --only
	out      string // file for the report
	evidence string // directory
	store    string // directory of the labs
	verbose  bool
}

func main() {
	lab.Main()
	// What whoever started us has open shall not be in the processes that CRIU dumps. An old kernel, which cannot do that, passes it on.
	_ = unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	s, err := parse()
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	violations, err := run(ctx, s)
	var missing *lab.MissingError
	switch {
	case errors.As(err, &missing):
		fmt.Fprintln(os.Stderr, "chaos:", err)
		os.Exit(4)
	case err != nil:
		fmt.Fprintln(os.Stderr, "chaos:", err)
		if errors.As(err, new(*violatedError)) {
			os.Exit(3)
		}
		os.Exit(1)
	case violations > 0:
		os.Exit(3)
	}
}

func parse() (s settings, err error) {
	flag.Uint64Var(&s.seed, "seed", 0, "of all choices (default: a random one, which is printed)")
	flag.DurationVar(&s.length, "for", 10*time.Minute, "begin no round after that time")
	flag.IntVar(&s.rounds, "rounds", 0, "end after so many rounds (default: when the time is over)")
	flag.IntVar(&s.round, "round", -1, "only this round, of a --seed")
	flag.IntVar(&s.workers, "workers", max(1, runtime.NumCPU()/2), "rounds at once, each with hosts of its own")
	flag.StringVar(&s.words, "only", "", "rounds with these operations, faults and targets, separated by commas")
	flag.StringVar(&s.out, "out", "", "file for the table, in Markdown, beside printing it")
	flag.StringVar(&s.evidence, "evidence", "chaos-evidence", "directory for what is kept of violations")
	flag.StringVar(&s.store, "store", "", "directory of the labs (default: environment CRYO_LAB, or /var/tmp/cryo-lab)")
	flag.BoolVar(&s.verbose, "v", false, "print all that happens in each round")
	list := flag.Bool("list", false, "list operations, faults and targets")
	flag.Parse()
	if flag.NArg() > 0 {
		return s, fmt.Errorf("what is %s for?", flag.Arg(0))
	}
	if *list {
		for _, o := range operations {
			fmt.Printf("%-16s %s\n", o.name, o.about)
			for _, f := range faults {
				if targets := f.targets(o); len(targets) > 0 {
					fmt.Printf("%-16s   %s: %s\n", "", f.name, strings.Join(targets, " "))
				}
			}
		}
		fmt.Println()
		for _, f := range faults {
			fmt.Printf("%-16s %s\n", f.name, f.about)
		}
		os.Exit(0)
	}
	given := map[string]bool{}
	flag.Visit(func(f *flag.Flag) { given[f.Name] = true })
	if !given["seed"] {
		s.seed = rand.Uint64N(1 << 32)
	}
	if given["round"] {
		s.rounds, s.workers = 1, 1
	} else {
		s.round = 0
	}
	if s.workers < 1 {
		return s, fmt.Errorf("%d workers", s.workers)
	}
	if s.only, err = parseFilter(strings.FieldsFunc(s.words, func(r rune) bool { return r == ',' || r == ' ' })); err != nil {
		return s, err
	}
	s.evidence, err = filepath.Abs(s.evidence)
	return s, err
}
