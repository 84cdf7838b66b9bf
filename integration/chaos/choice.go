package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// choice is what a round does. All of it follows from the seed, the round's number and the words of --only.
type choice struct {
	Seed      uint64
	Round     int
	Disk      bool // under the store is one that forgets, see integration/forgetful
	Operation string
	Fault     string
	Target    string
	At        instant
	Away      time.Duration // how long what is stopped or killed stays so
	Pick      int           // which of several processes of the target's name
	Amount    float64       // of what differs by the fault, from 0 to 1
}

// instant is when the fault comes.
type instant struct {
	Event string        // "": none, Share says
	Delay time.Duration // after the event
	Share float64       // of the operation's usual duration
}

func (i instant) String() string {
	if i.Event == "" {
		return fmt.Sprintf("at %.0f %%", 100*i.Share)
	}
	return fmt.Sprintf("%s after %s", i.Delay.Round(100*time.Microsecond), i.Event)
}

func (c choice) String() string {
	return fmt.Sprintf("%s: %s %s %s, for %s", c.Operation, c.Fault, c.Target, c.At, c.Away.Round(time.Millisecond))
}

// fault is a kind of harm.
type fault struct {
	name    string
	about   string
	weight  int
	targets func(o *operation) []string
	length  func(r *rand.Rand) time.Duration
	early   bool // it often comes before the operation
	disk    bool // it wants a disk that forgets
	do      func(ctx context.Context, r *round, pid int) error
}

// faults are all there are.
var faults = []fault{
	{name: "kill", about: "SIGKILL; a daemon is started again after up to three seconds", weight: 8, targets: processesOf, length: between(0, 3*time.Second), do: kill},
	{name: "stop", about: "SIGSTOP for up to three seconds", weight: 4, targets: processesOf, length: between(100*time.Millisecond, 3*time.Second), do: stop},
	{name: "interrupt", about: "SIGINT to the command, which undoes what it has done, or has done all", weight: 2, targets: twiceOf, do: interrupt},
	{name: "restart", about: "SIGTERM, and a start at once", weight: 2, targets: daemonsOf, do: restart},
	{name: "line", about: "for up to three seconds it is slow (1 to 100 MB/s and latency), lossy (pieces are 200 ms late), dark (nothing passes) or cut (connections are reset and refused), or requests get bad answers (404, 403, 401, empty 200, 500, a page)", weight: 3, targets: linesOf, length: between(50*time.Millisecond, 3*time.Second), do: spoilLine},
	{name: "flip", about: "one bit of a blob in the local store or the registry is wrong until the operation ends", weight: 2, targets: func(o *operation) []string { return o.flips }, early: true, do: flip},
	{name: "full", about: "until the operation ends at most 100 MiB are free in cryo's store, containerd's root or /run", weight: 3, targets: fillable, early: true, do: fill},
	{name: "reboot", about: "all processes of the host are killed at once, /run and temporary files are emptied, and it boots", weight: 1, targets: hostOf, do: reboot},
	{name: "power", about: "reboot, and the disk drops all or part of what was not synced, at any time (during) or when the command has just said that it is done (after)", weight: 6, targets: disksOf, disk: true, do: power},
	{name: "disk", about: "until the operation ends, fsync or write gives EIO or ENOSPC", weight: 4, targets: callsOf, early: true, disk: true, do: breakDisk},
	{name: "again", about: "SIGKILL of the command, and the same command at once: a name is not refused that vanishes a moment later", weight: 1, targets: againOf, do: again},
	{name: "damage", about: "until the operation ends index.json of the store is damaged (index), its backup as well (indexes), or the manifest of another snapshot is damaged or gone (manifest); then cryo prune runs", weight: 2, targets: damageable, early: true, do: damage},
	{name: "twice", about: "the same command runs beside the first; one must succeed", weight: 1, targets: twiceOf, do: twice},
}

// daemons can be started again.
var daemons = []string{"containerd", "registry"}

func processesOf(o *operation) []string { return o.processes }

func daemonsOf(o *operation) (found []string) {
	for _, d := range daemons {
		if slices.Contains(o.processes, d) {
			found = append(found, d)
		}
	}
	return found
}

// linesOf are the ways in which a line is bad, where one is used.
func linesOf(o *operation) []string {
	if !slices.Contains(o.processes, "registry") {
		return nil
	}
	return []string{"slow", "lossy", "cut", "dark", "answers"}
}

func hostOf(*operation) []string { return []string{"host"} }

func twiceOf(o *operation) []string {
	if o.stock {
		return nil
	}
	return []string{"command"}
}

func againOf(o *operation) []string {
	if o.stock || !o.fresh {
		return nil
	}
	return []string{"name"}
}

// damageable are the parts of a store that others than the operation's snapshot need.
func damageable(o *operation) []string {
	if o.stock || !o.stores {
		return nil
	}
	if o.second || o.fresh || o.name == "push" {
		return []string{"index", "indexes"}
	}
	return []string{"index", "indexes", "manifest"}
}

// between draws a length, short ones as often as ten times longer ones.
func between(least, most time.Duration) func(*rand.Rand) time.Duration {
	return func(r *rand.Rand) time.Duration {
		f := r.Float64()
		return least + time.Duration(f*f*float64(most-least))
	}
}

// choose draws what a round does, and draws again until it is among what only names.
func choose(seed uint64, round int, only filter) choice {
	r := rand.New(rand.NewPCG(seed, uint64(round)))
	disk := only.disk(round)
	for {
		o := drawOperation(r)
		f, ok := drawFault(r, o, disk)
		if !ok {
			continue
		}
		c := choice{Seed: seed, Round: round, Disk: disk, Operation: o.name}
		targets := f.targets(o)
		c.Fault, c.Target = f.name, targets[r.IntN(len(targets))]
		c.At = drawInstant(r, o)
		if f.early && r.IntN(3) > 0 {
			c.At = instant{}
		}
		if f.length != nil {
			c.Away = f.length(r)
		}
		if c.Target == "after" || c.Target == "indexes" { // what was acknowledged; what the operation has not named yet
			c.At = instant{}
		}
		c.Pick, c.Amount = r.IntN(8), r.Float64()
		if only.takes(c) {
			return c
		}
	}
}

// drawOperation draws those without GPUs twice as often as each of the others.
func drawOperation(r *rand.Rand) *operation {
	weight := func(o *operation) int {
		if o.engine != "" {
			return 1
		}
		return 2
	}
	total := 0
	for _, o := range operations {
		total += weight(o)
	}
	n := r.IntN(total)
	for _, o := range operations {
		if n -= weight(o); n < 0 {
			return o
		}
	}
	panic("no operation")
}

// drawFault draws one that has a target in the operation. What wants a disk that forgets comes where there is one, and nothing else there.
func drawFault(r *rand.Rand, o *operation, disk bool) (fault, bool) {
	total := 0
	for _, f := range faults {
		if f.disk == disk && len(f.targets(o)) > 0 {
			total += f.weight
		}
	}
	if total == 0 {
		return fault{}, false
	}
	n := r.IntN(total)
	for _, f := range faults {
		if f.disk != disk || len(f.targets(o)) == 0 {
			continue
		}
		if n -= f.weight; n < 0 {
			return f, true
		}
	}
	panic("no fault")
}

// block is how many rounds a worker's disks are of one kind: others want other hosts. The second of every forgetfulBlocks has disks that forget, so that
// a run of ten minutes on two cores comes to it.
const (
	block           = 60
	forgetfulBlocks = 5
)

// disk tells whether a round has disks that forget: all do or none does where the words are of one kind only.
func (f filter) disk(round int) bool {
	kinds := map[bool]bool{}
	for _, kind := range faults {
		if len(f.faults) == 0 || slices.Contains(f.faults, kind.name) {
			for _, o := range operations {
				for _, target := range kind.targets(o) {
					if f.takes(choice{Operation: o.name, Fault: kind.name, Target: target}) {
						kinds[kind.disk] = true
					}
				}
			}
		}
	}
	if len(kinds) == 1 {
		return kinds[true]
	}
	return round/block%forgetfulBlocks == 1
}

// drawInstant draws one that is uniform over the operation as often as one at a step of it.
func drawInstant(r *rand.Rand, o *operation) instant {
	if len(o.events) == 0 || r.IntN(2) == 0 {
		return instant{Share: r.Float64() * 1.05}
	}
	i := instant{Event: o.events[r.IntN(len(o.events))]}
	if r.IntN(3) > 0 {
		f := r.Float64()
		i.Delay = time.Duration(f * f * f * float64(300*time.Millisecond))
	}
	return i
}

// filter is --only: words that name operations (gpu and plain many), faults or targets. Where any names one of a kind, only those of the kind are taken.
type filter struct{ operations, faults, targets []string }

func parseFilter(words []string) (f filter, err error) {
	for _, w := range words {
		known := false
		for _, o := range operations {
			if o.name == w || w == "gpu" && o.engine != "" || w == "plain" && o.engine == "" {
				f.operations, known = append(f.operations, o.name), true
			}
		}
		for _, kind := range faults {
			if kind.name == w {
				f.faults, known = append(f.faults, w), true
			}
			for _, o := range operations {
				if slices.Contains(kind.targets(o), w) && !slices.Contains(f.targets, w) {
					f.targets, known = append(f.targets, w), true
				}
			}
		}
		if !known {
			return f, fmt.Errorf("--only %s: neither an operation (%s) nor a fault or target (see --list)", w, strings.Join(operationNames(), " "))
		}
	}
	if !f.possible() {
		return f, fmt.Errorf("--only %s: no operation has such a fault", strings.Join(words, ","))
	}
	return f, nil
}

func (f filter) takes(c choice) bool {
	in := func(list []string, word string) bool { return len(list) == 0 || slices.Contains(list, word) }
	return in(f.operations, c.Operation) && in(f.faults, c.Fault) && in(f.targets, c.Target)
}

// gpus tells whether it takes any operation with GPUs.
func (f filter) gpus() bool {
	for _, o := range operations {
		if o.engine != "" && f.possibleOf(o) {
			return true
		}
	}
	return false
}

// possible tells whether there is any choice that it takes.
func (f filter) possible() bool {
	return slices.ContainsFunc(operations, f.possibleOf)
}

// possibleOf reports whether a round of the operation o passes the filter.
func (f filter) possibleOf(o *operation) bool {
	for _, kind := range faults {
		for _, target := range kind.targets(o) {
			if f.takes(choice{Operation: o.name, Fault: kind.name, Target: target}) {
				return true
			}
		}
	}
	return false
}

// fillable are the file systems that may be full. The fake driver has the memory of its GPUs in /run: what a real one restores has no disk that is full.
func fillable(o *operation) []string {
	if o.engine == "" {
		return o.fills
	}
	return slices.DeleteFunc(slices.Clone(o.fills), func(place string) bool { return place == "run" })
}
