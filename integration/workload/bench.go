package main

import (
	"errors"
	"flag"
	"fmt"
	"strconv"
	"sync/atomic"
)

// bench is what integration/bench measures: much memory that is there quickly, whose content is known without a copy of it, and
// a clock that notices when the process stood still. It answers at once; only what asks for its memory touches that.
type bench struct {
	memory *pattern
	clock  *clock
	read   atomic.Int64 // pages, by scatter
}

func startBench(flags *flag.FlagSet, args []string) (workload, error) {
	mib := flags.Int("memory", 1, "memory to hold, in MiB")
	seed := flags.Uint64("seed", 1, "seed of the random bytes")
	mixed := flags.Bool("mixed", false, "70 % zero pages, 15 % like code, 15 % random; else all random")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	p, err := newPattern(*mib, *seed, *mixed)
	if err != nil {
		return nil, err
	}
	return &bench{memory: p, clock: startClock()}, nil
}

// Check only says that the process lives.
func (b *bench) Check() (map[string]any, error) {
	return map[string]any{"bytes": len(b.memory.pages), "read": b.read.Load()}, nil
}

// Do knows these commands:
//
//	gap                     the longest time the clock stood still since it was asked last, seconds
//	filled                  waits until all pages that are not zero are there, without touching them
//	verify                  reads all of the memory
//	scatter                 reads one page after the other, in an order that nobody can guess, and the longest time that one took, seconds
//	change PERMILLE PAGES   gives so much of the memory new random bytes, in scattered runs of so many pages; 0: in one run
func (b *bench) Do(command string, args []string) (map[string]any, error) {
	switch {
	case command == "gap" && len(args) == 0:
		return map[string]any{"gap": b.clock.gap().Seconds()}, nil
	case command == "filled" && len(args) == 0:
		return nil, b.memory.awaitFilled()
	case command == "verify" && len(args) == 0:
		if damaged := b.memory.damaged(); damaged > 0 {
			return nil, fmt.Errorf("%d of %d pages are not what was written", damaged, len(b.memory.versions))
		}
		return nil, nil
	case command == "scatter" && len(args) == 0:
		return map[string]any{"longest": b.memory.scatter(&b.read).Seconds()}, nil
	case command == "change" && len(args) == 2:
		perMille, err := strconv.Atoi(args[0])
		run, err2 := strconv.Atoi(args[1])
		if errors.Join(err, err2) != nil || perMille < 1 || perMille > 1000 || run < 0 {
			return nil, fmt.Errorf("change by %q per mille in runs of %q pages: no such numbers", args[0], args[1])
		}
		return map[string]any{"pages": b.memory.change(perMille, run)}, nil
	}
	return nil, fmt.Errorf("unknown command %q", command)
}
