package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// groupSizes are the numbers of members of the groups that are measured.
var groupSizes = []int{2, 8, 32}

const (
	ringPort = 7100                   // of the first member; each further one listens on the next port
	ringRest = 500 * time.Millisecond // between a member's bursts of messages: 32 members that never rest would use the processors that the dumps need
	ringTime = time.Minute            // bounds the wait for messages to go round
)

// group measures groups of containers, all on one host and in its network. Each member of a ring has a connection to the next one, and one from the member before.
func (b *bench) group(ctx context.Context) error {
	for _, n := range groupSizes {
		f := newGroupFigures(n)
		if b.late() {
			f.longest.NotRun = "no time was left (--budget)"
			b.report.add(f.longest)
			continue
		}
		if err := b.groupOf(ctx, n, f); err != nil {
			return err
		}
	}
	return nil
}

// groupFigures are those of a group of one size.
type groupFigures struct{ longest, median, span, cost, queued, bound *figure }

func newGroupFigures(n int) groupFigures {
	const (
		alone  = "one of them alone, checkpoint --push"
		atOnce = "all at the same time, not in step"
		bound  = "processor time of as many lone ones, on all cores"
		most   = "longest that a member stands still"
		span   = "from the first freeze to the last thaw"
	)
	f := groupFigures{
		longest: &figure{What: most, BesideWhat: alone, Aim: aim{Ratio: 1.5}},
		median:  &figure{What: "median of all members", BesideWhat: alone},
		span:    &figure{What: span, BesideWhat: alone},
		cost:    &figure{What: most, BesideWhat: atOnce},
		queued:  &figure{What: "(" + atOnce + ": longest)", BesideWhat: alone},
		bound:   &figure{What: span, BesideWhat: bound},
	}
	for _, of := range f.all() {
		of.Case, of.Subject, of.Unit = "group", fmt.Sprintf("Group of %d members, a ring on one host", n), "s"
	}
	return f
}

func (f groupFigures) all() []*figure {
	return []*figure{f.longest, f.median, f.span, f.cost, f.queued, f.bound}
}

// add takes in a round.
func (f groupFigures) add(n int, alone, together, atOnce standstill) {
	f.longest.Cryo, f.longest.Beside = append(f.longest.Cryo, together.longest), append(f.longest.Beside, alone.longest)
	f.median.Cryo, f.median.Beside = append(f.median.Cryo, together.median), append(f.median.Beside, alone.longest)
	f.span.Cryo, f.span.Beside = append(f.span.Cryo, together.span), append(f.span.Beside, alone.longest)
	f.cost.Cryo, f.cost.Beside = append(f.cost.Cryo, together.longest), append(f.cost.Beside, atOnce.longest)
	f.queued.Cryo, f.queued.Beside = append(f.queued.Cryo, atOnce.longest), append(f.queued.Beside, alone.longest)
	f.bound.Cryo, f.bound.Beside = append(f.bound.Cryo, together.span), append(f.bound.Beside, float64(n)*alone.busy*alone.span)
}

// groupOf measures a group of n members: in each round one of them alone, all in step, and all at the same time. Each of these is the first one in another round.
func (b *bench) groupOf(ctx context.Context, n int, f groupFigures) (err error) {
	defer func() { b.report.add(f.all()...) }()
	r, err := b.startRing(ctx, n)
	defer func() { err = errors.Join(err, r.remove(ctx)) }()
	if err != nil {
		return err
	}
	if _, err := r.alone(ctx); err != nil { // unmeasured: it reads programs from the disk
		return err
	}
	ways := []func(context.Context) (standstill, error){r.alone, r.together, r.atOnce}
	var busy [3][]float64
	for round := 0; round < b.rounds && (round == 0 || !b.late()); round++ {
		var stood [3]standstill
		for i := range ways {
			way := (round + i) % len(ways)
			if stood[way], err = ways[way](ctx); err != nil {
				return err
			}
			busy[way] = append(busy[way], stood[way].busy)
		}
		f.add(n, stood[0], stood[1], stood[2])
	}
	f.longest.Note = fmt.Sprintf("processors in use meanwhile: %s; %s beside it", percent(busy[1]), percent(busy[0]))
	f.cost.Note = fmt.Sprintf("processors in use meanwhile: %s; %s beside it", percent(busy[1]), percent(busy[2]))
	return nil
}

// percent returns the median of shares for people.
func percent(shares []float64) string {
	s, _ := spreadOf(shares)
	return fmt.Sprintf("%.0f %%", 100*s.median)
}

// ringContainers are the members of a ring.
type ringContainers struct {
	*bench
	members []*container
}

// startRing starts a ring, and waits until messages go round. After an error it has the members that were started.
func (b *bench) startRing(ctx context.Context, n int) (*ringContainers, error) {
	r := &ringContainers{bench: b}
	address := func(member int) string { return "127.0.0.1:" + strconv.Itoa(ringPort+member%n) }
	for i := range n {
		c := b.handle(b.a)
		// CRIU does not know Multipath TCP, with which a Go program would listen.
		started := c.host.Ctr(ctx, "run", "--detach", "--null-io", "--net-host", "--env", "GODEBUG=multipathtcp=0", "--runtime", cryoRuntime, lab.ImageName, c.id,
			"workload", "ring", "--quiet", "--listen", address(i), "--next", address(i+1), "--rest", ringRest.String())
		if err := started.Err(); err != nil {
			return r, err
		}
		r.members = append(r.members, c)
	}
	for _, c := range r.members {
		if _, err := c.await(ctx, time.Now()); err != nil {
			return r, err
		}
	}
	return r, r.goRound(ctx)
}

func (r *ringContainers) remove(ctx context.Context) (err error) {
	for _, c := range r.members {
		err = errors.Join(err, c.remove(ctx))
	}
	return err
}

// goRound waits until each member has sent and taken further messages. A member that misses one answers with an error.
func (r *ringContainers) goRound(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, ringTime)
	defer cancel()
	for _, c := range r.members {
		var first [2]float64
		for n := 0; ; n++ {
			a, err := c.ask(ctx, "check")
			if err != nil {
				return err
			}
			acknowledged, _ := a.State["acknowledged"].(float64)
			taken, _ := a.State["taken"].(float64)
			if n == 0 {
				first = [2]float64{acknowledged, taken}
			} else if acknowledged > first[0] && taken > first[1] {
				break
			}
			if ctx.Err() != nil {
				return fmt.Errorf("no message goes through %s: %w", c.id, context.Cause(ctx))
			}
			time.Sleep(ringRest / 10)
		}
	}
	return nil
}

// standstill is how long containers stood still in one or several checkpoints that ran at the same time.
type standstill struct {
	longest, median float64 // seconds, of the containers
	span            float64 // seconds from when the first one stood still until the last one ran
	busy            float64 // the share of that span in which the processors were in use
}

// ringFlags are those of all checkpoints here.
var ringFlags = []string{"--leave-running", "--plain-http"}

// alone takes a snapshot of one member, while all others run.
func (r *ringContainers) alone(ctx context.Context) (standstill, error) { return r.plain(ctx, 1) }

// atOnce takes snapshots of all members at the same time, not in step.
func (r *ringContainers) atOnce(ctx context.Context) (standstill, error) {
	return r.plain(ctx, len(r.members))
}

// plain takes snapshots of the first n members by as many commands.
func (r *ringContainers) plain(ctx context.Context, n int) (standstill, error) {
	return r.measure(ctx, func(ref func(int) string) ([]float64, error) {
		freezes, failures := make([]float64, n), make([]error, n)
		var all sync.WaitGroup
		for i, c := range r.members[:n] {
			all.Go(func() {
				var t taken
				t, _, failures[i] = r.checkpoint(ctx, c, ref(i), append([]string{"--push", "--tcp-established"}, ringFlags...)...)
				freezes[i] = t.Freeze
			})
		}
		all.Wait()
		return freezes, errors.Join(failures...)
	})
}

// together takes snapshots of all members in step.
func (r *ringContainers) together(ctx context.Context) (standstill, error) {
	return r.measure(ctx, func(ref func(int) string) ([]float64, error) {
		args := append([]string{"--json", "checkpoint", r.groupRef()}, ringFlags...)
		for i, c := range r.members {
			args = append(args, "--group", "m"+strconv.Itoa(i)+"=/"+c.id)
		}
		result := r.a.Cryo(ctx, args...)
		if err := result.Err(); err != nil {
			return nil, err
		}
		var group struct {
			Members []struct{ Checkpoint taken }
		}
		if err := json.Unmarshal([]byte(result.Stdout), &group); err != nil {
			return nil, fmt.Errorf("read the result of cryo checkpoint --group: %w", err)
		}
		var freezes []float64
		for _, m := range group.Members {
			freezes = append(freezes, m.Checkpoint.Freeze)
		}
		return freezes, nil
	})
}

// groupRef is the name of a group's snapshot. With "-m" and a number it is that of a member's.
func (r *ringContainers) groupRef() string { return r.registry.Reference("bench/group:ring") }

// measure calls take, which takes snapshots, has them called as ref returns, and returns how long each container stood still. Neither the store nor the registry has anything of them before.
func (r *ringContainers) measure(ctx context.Context, take func(ref func(int) string) ([]float64, error)) (s standstill, err error) {
	if err := r.afresh(ctx, r.a); err != nil {
		return s, err
	}
	use := watchProcessors()
	defer use.stop()
	ref := func(i int) string { return r.groupRef() + "-m" + strconv.Itoa(i) }
	freezes, err := take(ref)
	if err != nil {
		return s, err
	}
	use.stop()
	var first, last time.Time
	for i, freeze := range freezes {
		began, err := r.frozen(ctx, ref(i))
		if err != nil {
			return s, err
		}
		if ended := began.Add(time.Duration(freeze * float64(time.Second))); ended.After(last) {
			last = ended
		}
		if first.IsZero() || began.Before(first) {
			first = began
		}
	}
	of, ok := spreadOf(freezes)
	if !ok || of.least <= 0 {
		return s, fmt.Errorf("containers stood still for %v s", freezes)
	}
	return standstill{of.most, of.median, last.Sub(first).Seconds(), use.between(first, last)}, r.goRound(ctx)
}

// frozen returns when the container of a snapshot stood still.
func (r *ringContainers) frozen(ctx context.Context, ref string) (time.Time, error) {
	result := r.a.Cryo(ctx, "--json", "inspect", "--plain-http", ref)
	if err := result.Err(); err != nil {
		return time.Time{}, err
	}
	var i struct{ Config struct{ Created time.Time } }
	if err := json.Unmarshal([]byte(result.Stdout), &i); err != nil {
		return time.Time{}, fmt.Errorf("read the result of cryo inspect: %w", err)
	}
	return i.Config.Created, nil
}
