package main

import (
	crand "crypto/rand"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	mrand "math/rand"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// clones has random state of which two containers of one snapshot must not have the same.
type clones struct {
	wiped  []byte    // of three pages, of which fork would wipe the second and the third in a child
	locked []byte    // likewise, in memory that is locked: CRIU restores it before the process runs
	first  []byte    // what wiped had at the start
	since  time.Time // the start, by the monotonic clock and the wall clock
	timer  *time.Timer
	at     chan time.Time // when it has run down
	ran    time.Duration  // after how long of the monotonic clock it did; 0: not yet
	own    *rand.Rand     // a generator that is seeded once
	draws  chan func()    // what the thread does that draws: Go has generators of each thread
}

func startClones(flags *flag.FlagSet, args []string) (workload, error) {
	after := flags.Duration("timer", time.Hour, "when a timer runs down")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	c := &clones{since: time.Now(), at: make(chan time.Time, 1), own: seeded(), draws: make(chan func())}
	go func() {
		runtime.LockOSThread()
		for draw := range c.draws {
			draw()
		}
	}()
	c.timer = time.AfterFunc(*after, func() { c.at <- time.Now() })
	for _, p := range []*[]byte{&c.wiped, &c.locked} {
		pages, err := unix.Mmap(-1, 0, 3*pageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		if err != nil {
			return nil, fmt.Errorf("map memory: %w", err)
		}
		if err := unix.Madvise(pages[pageSize:], unix.MADV_WIPEONFORK); err != nil {
			return nil, fmt.Errorf("have fork wipe memory: %w", err)
		}
		_, _ = crand.Read(pages) // never fails
		*p = pages
	}
	c.first = slices.Clone(c.wiped)
	copy(c.locked, c.first)
	if err := unix.Mlock(c.locked); err != nil {
		return nil, fmt.Errorf("lock memory: %w", err)
	}
	return c, nil
}

// Check implements [workload]. What fork wipes is as it was, or zeros.
func (c *clones) Check() (map[string]any, error) {
	state := map[string]any{}
	for name, pages := range map[string][]byte{"wiped": c.wiped, "locked": c.locked} {
		if !slices.Equal(pages[:pageSize], c.first[:pageSize]) {
			return nil, errors.New(name + ": a page beside those that fork wipes has changed")
		}
		switch rest := pages[pageSize:]; {
		case slices.Equal(rest, c.first[pageSize:]):
			state[name] = "as it was"
		case !slices.ContainsFunc(rest, func(b byte) bool { return b != 0 }):
			state[name] = "zeros"
		default:
			return nil, errors.New(name + ": pages that fork wipes are neither as they were nor zeros")
		}
	}
	return state, nil
}

// seeded returns a generator with a seed of the kernel's.
func seeded() *rand.Rand {
	var seed [32]byte
	_, _ = crand.Read(seed[:]) // never fails
	return rand.New(rand.NewChaCha8(seed))
}

// several draws values that follow each other: Go itself draws from a thread's generator now and then, so that clones are at different places of one sequence.
func several(draw func() uint64) string {
	var all []string
	for range 100 {
		all = append(all, fmt.Sprint(draw()))
	}
	return strings.Join(all, " ")
}

// Do answers one question. "draw" returns random values; "renew" seeds the generators anew and then returns random values; "clock" returns the clocks in nanoseconds.
func (c *clones) Do(command string, _ []string) (map[string]any, error) {
	switch command {
	case "renew":
		c.own = seeded()
		return c.Do("draw", nil)
	case "draw":
		drawn := make(chan map[string]any)
		c.draws <- func() {
			var system [16]byte
			_, _ = crand.Read(system[:]) // never fails
			drawn <- map[string]any{
				"Go crypto/rand":          hex.EncodeToString(system[:]),
				"Go math/rand":            several(mrand.Uint64),
				"Go math/rand/v2":         several(rand.Uint64),
				"Go math/rand/v2.ChaCha8": fmt.Sprint(c.own.Uint64()),
			}
		}
		return <-drawn, nil
	case "clock":
		var monotonic, boot unix.Timespec
		if err := errors.Join(unix.ClockGettime(unix.CLOCK_MONOTONIC, &monotonic), unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot)); err != nil {
			return nil, fmt.Errorf("read the clocks: %w", err)
		}
		select {
		case at := <-c.at:
			c.ran = at.Sub(c.since)
		default:
		}
		return map[string]any{"monotonic": monotonic.Nano(), "boot": boot.Nano(), "wall": time.Now().UnixNano(), "timer": int64(c.ran)}, nil
	}
	return nil, fmt.Errorf("no command %q", command)
}
