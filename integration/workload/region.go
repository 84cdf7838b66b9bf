package main

import (
	"flag"
	"fmt"
	"strconv"
)

// region is memory whose changes come in a number of runs of pages.
type region struct{ counting }

func startRegion(flags *flag.FlagSet, args []string) (workload, error) {
	w, err := startCount(flags, args)
	if err != nil {
		return nil, err
	}
	return region{w.(counting)}, nil
}

// Do knows "runs PERMILLE RUNS": it fills a share of the pages, in runs spread evenly, with new random bytes.
func (r region) Do(command string, args []string) (map[string]any, error) {
	if command != "runs" || len(args) != 2 {
		return r.counting.Do(command, args)
	}
	pages := len(r.memory.pages) / pageSize
	perMille, err := strconv.Atoi(args[0])
	if err != nil || perMille < 0 || perMille > 1000 {
		return nil, fmt.Errorf("change by %q per mille: not between 0 and 1000", args[0])
	}
	runs, err := strconv.Atoi(args[1])
	if err != nil || runs < 1 || runs > pages {
		return nil, fmt.Errorf("change in %q runs: not between 1 and %d", args[1], pages)
	}
	for run := range runs {
		first := run * pages / runs
		for page := first; page < first+pages*perMille/1000/runs; page++ {
			r.memory.fill(r.memory.pages[page*pageSize:(page+1)*pageSize], "random")
		}
	}
	r.memory.rehash()
	return r.memory.check()
}
