package main

import (
	"errors"
	"flag"
	"fmt"
	"runtime"
	"runtime/debug"
	"strconv"

	"github.com/cryo-project/cryo/runtime/lazypages/twintest"
)

// churn holds memory that it changes in all ways when it is asked to, beside a twin of it that is made then.
type churn struct {
	slots int
	seed  uint64
}

func startChurn(flags *flag.FlagSet, args []string) (workload, error) {
	slots := flags.Int("slots", 12, "ranges of memory, of 2.7 MiB each")
	seed := flags.Uint64("seed", 1, "of the content")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	if err := twintest.Map(twintest.Lazy, *slots); err != nil {
		return nil, err
	}
	twintest.Fill(twintest.Lazy, *slots, *seed)
	return churn{*slots, *seed}, nil
}

func (c churn) Check() (map[string]any, error) { return nil, nil }

// Do knows "churn SEED", once.
func (c churn) Do(command string, args []string) (map[string]any, error) {
	if command != "churn" || len(args) != 1 {
		return nil, fmt.Errorf("unknown command %q", command)
	}
	seed, err := strconv.ParseUint(args[0], 10, 32)
	if err != nil {
		return nil, err
	}
	if err := twintest.Map(twintest.Twin, c.slots); err != nil {
		return nil, err
	}
	twintest.Fill(twintest.Twin, c.slots, c.seed)
	m := twintest.New(c.slots, seed)
	// What is forked off has this thread only: it must not need what another held at the time.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	growStack(0)
	if status := m.Run(150, 2); status != 0 {
		return nil, errors.New(twintest.Explain(status))
	}
	return nil, nil
}

// growStack makes the stack of this goroutine as large as it will have to be.
//
//go:noinline
func growStack(depth int) byte {
	var room [1024]byte
	room[depth] = 1
	if depth == 32 {
		return room[0]
	}
	return growStack(depth+1) + room[depth]
}
