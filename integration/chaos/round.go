package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// none is the fault of rehearsals.
const none = "none"

// commandTime bounds a command: what takes longer is stuck. Registries that are away are waited for by some minutes of attempts.
const commandTime = 4 * time.Minute

// round is one operation with one fault in it.
type round struct {
	world  *world
	op     *operation
	choice choice
	host   *lab.Host
	id     string // of what is restored
	ref    string // of what is taken

	there  map[int]bool // processes from before
	before []string     // trace
	logs   map[string]int64
	began  time.Time
	exits  *exits
	hit    bool
	mend   func(context.Context) error // takes the harm away once the operation is over; nil: nothing to do
	second *lab.Result                 // of the same command given beside it
	result lab.Result
	over   bool // the container had ended before power was cut
	tagged bool // the snapshot's name was in the store meanwhile

	verdict    verdict
	violations []string

	mu    sync.Mutex
	notes []string // guarded by mu
}

func newRound(w *world, o *operation, c choice) *round {
	r := &round{world: w, op: o, choice: c, host: w.a, id: fmt.Sprintf("r%d", c.Round), ref: w.reference(fmt.Sprintf("r%d", c.Round)), began: time.Now()}
	if o.second {
		r.host = w.b
	}
	return r
}

// golden is the snapshot of the kind of container that the round is about.
func (r *round) golden() string { return r.world.golden[r.op.engine] }

// note writes down what happens.
func (r *round) note(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.notes = append(r.notes, fmt.Sprintf("%8.3f  ", time.Since(r.began).Seconds())+strings.ReplaceAll(strings.TrimSpace(fmt.Sprintf(format, args...)), "\n", "\n          "))
}

func (r *round) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.notes, "\n") + "\n"
}

func (r *round) violate(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	r.note("VIOLATION: %s", text)
	r.violations = append(r.violations, text)
}

// seen begins what the oracle is told.
func (r *round) seen(state string) seen {
	id := r.id
	if !r.op.fresh {
		id = subject
	}
	s := seen{code: r.result.Code, text: r.result.Stderr, state: state, tagged: r.tagged}
	if r.hit && slices.Contains([]string{"kill", "reboot", "flip"}, r.choice.Fault) {
		s.harmed = r.choice.Target
	}
	if r.hit && r.choice.Fault == "power" {
		s.harmed = "host"
		s.tagged = r.tagged && (r.choice.Target == "after" || r.over) // else it may not have been on the disk yet, and need not
	}
	s.passing = r.choice.Fault == "line" || r.choice.Target == "registry" || r.choice.Fault == "full" && r.choice.Target == "store"
	s.twice = r.second != nil
	// A containerd that has ended meanwhile tells nobody who listened before.
	s.reported = r.exits == nil || r.hit && (r.choice.Target == "containerd" || s.harmed == "host")
	s.logged = s.harmed == "host" || s.code == exitOK && s.harmed == "" // then nobody asks
	for deadline := time.Now().Add(3 * time.Second); state == stopped && !(s.reported && s.logged) && time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		s.reported = s.reported || r.exits.has(id)
		s.logged = s.logged || logged(r.host.Log(), r.logs[r.host.Log()], id)
	}
	return s
}

// run does all of it. An error is the harness's own.
func (r *round) run(ctx context.Context) error {
	defer r.world.line.become(lineState{})
	for _, step := range []func(context.Context) error{r.prepare, r.watched, r.again, r.tidy} {
		if err := step(ctx); err != nil {
			return err
		}
		if len(r.violations) > 0 {
			return nil
		}
	}
	return nil
}

func (r *round) prepare(ctx context.Context) (err error) {
	r.logs = r.world.offsets()
	if r.choice.Fault == "full" && r.choice.Target == "store" && r.op.second { // so that its memory is still to come when the store is full
		r.world.line.become(lineState{rate: 4e6})
	}
	if r.op.prepare != nil {
		if err := r.op.prepare(ctx, r); err != nil {
			return fmt.Errorf("prepare: %w", err)
		}
	}
	r.before, err = trace(ctx, r.host)
	return err
}

// watched is act, with an ear on what containerd reports.
func (r *round) watched(ctx context.Context) (err error) {
	if r.exits, err = watchExits(ctx, r.host); err != nil {
		return err
	}
	err = r.act(ctx)
	if len(r.violations) == 0 {
		err = errors.Join(err, r.ask(ctx))
	}
	return errors.Join(err, r.exits.close())
}

// act runs the command and harms what is to be harmed.
func (r *round) act(ctx context.Context) error {
	r.there = map[int]bool{}
	for _, p := range r.host.Running() {
		r.there[p.PID] = true
	}
	var event func() bool
	if r.choice.At.Event != "" {
		event = r.event(r.choice.At.Event)
	}
	working, done := context.WithCancel(ctx)
	defer done()
	tagged := make(chan bool, 1)
	go func() { tagged <- until(working, r.named()) }()
	started, injected := make(chan int, 1), make(chan error, 1)
	if r.choice.Fault == none || r.choice.Fault == "power" && r.choice.Target == "after" {
		injected <- nil
	} else {
		go func() { injected <- r.inject(working, event, started) }()
	}
	words := r.op.words(r)
	limited, cancel := context.WithTimeout(ctx, commandTime)
	defer cancel()
	c := r.host.Command(limited, words[0], words[1:]...)
	r.note("%s", strings.Join(words, " "))
	r.result = lab.Follow(c, func() { started <- c.Process.Pid })
	r.note("exit %d: %s", r.result.Code, r.result.Stderr)
	if r.choice.Fault == "power" && r.choice.Target == "after" {
		defer done()
		r.hit = true
		r.note("power is cut")
		r.tagged = r.result.Code == exitOK
		return power(ctx, r, 0)
	}
	if r.choice.Target == "restore" && r.choice.Fault == "kill" { // it works on when the command has ended
		time.Sleep(200 * time.Millisecond)
	}
	done()
	r.tagged = <-tagged
	err := <-injected
	r.world.line.become(lineState{})
	if r.mend != nil {
		err = errors.Join(err, r.mend(ctx))
	}
	if r.second != nil && r.result.Code != exitOK {
		r.result, r.second = *r.second, &r.result // one of them must have done it
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if limited.Err() != nil {
		r.violate("stuck: %s has not ended after %s", words[1], commandTime)
	}
	return err
}

// named tells whether the snapshot has its name in the store.
func (r *round) named() func() bool {
	changed := r.event("tag")
	path := filepath.Join(r.host.CryoRoot(), "store/index.json")
	return func() bool { return changed() && contains(path, `"`+r.ref+`"`) }
}

// ask has the oracle look.
func (r *round) ask(ctx context.Context) (err error) {
	r.verdict, err = r.op.judge(ctx, r)
	if err != nil {
		return fmt.Errorf("look: %w", err)
	}
	for _, text := range r.verdict.wrong {
		r.violate("%s", text)
	}
	if r.hit && r.choice.Fault == "interrupt" && r.result.Code != exitOK {
		if r.result.Code != exitInterrupted {
			r.violate("interrupted, and the exit code is %d: %s", r.result.Code, r.result.Stderr)
		}
		if r.verdict.outcome == gone && !strings.Contains(r.result.Stderr, "the snapshot is safe as") { // only its push was interrupted
			r.violate("interrupted, and the container is gone")
		}
	}
	return nil
}

// again gives the same command once more, which now must succeed.
func (r *round) again(ctx context.Context) error {
	if r.op.ready != nil {
		if err := r.op.ready(ctx, r); err != nil {
			return fmt.Errorf("make ready again: %w", err)
		}
		if len(r.violations) > 0 {
			return nil
		}
	}
	r.exits = nil // what ends now ends by what was asked for
	first, hit := r.result, r.hit
	defer func() { r.result, r.hit = first, hit }()
	limited, cancel := context.WithTimeout(ctx, commandTime)
	defer cancel()
	words := r.op.words(r)
	r.note("again")
	r.result, r.hit = r.host.Run(limited, words...), false
	r.note("exit %d: %s", r.result.Code, r.result.Stderr)
	// ctr does not remove its snapshot where containerd is away just then; its user does.
	if r.op.stock && hit && strings.HasPrefix(r.result.Stderr, "ctr: snapshot ") && strings.HasSuffix(strings.TrimSpace(r.result.Stderr), "already exists") {
		r.host.Ctr(limited, "snapshots", "rm", r.id)
		r.result = r.host.Run(limited, words...)
		r.note("ctr had left its snapshot; exit %d: %s", r.result.Code, r.result.Stderr)
	}
	if r.result.Code != exitOK {
		r.violate("the same command fails when given again: exit code %d: %s", r.result.Code, r.result.Stderr)
		return nil
	}
	r.world.usual[r.op.name] = (r.world.usual[r.op.name] + r.result.Elapsed) / 2
	v, err := r.op.judge(ctx, r)
	if err != nil {
		return fmt.Errorf("look again: %w", err)
	}
	for _, text := range v.wrong {
		r.violate("given again: %s", text)
	}
	return nil
}

// tidy removes what a user would, and wants nothing else to be there.
func (r *round) tidy(ctx context.Context) error {
	if r.op.clean != nil {
		if err := r.op.clean(ctx, r); err != nil {
			r.violate("a user cannot clean up: %v", err)
			return nil
		}
	}
	want := r.world.bare[r.host]
	if slices.ContainsFunc(r.before, r.ofSubject) && !r.ended() {
		want = r.before
	} else if r.world.life != "" && r.host == r.world.a { // it is another than before
		if err := r.world.remove(ctx, r.host, subject); err != nil {
			r.violate("a container cannot be removed: %v", err)
			return nil
		}
	}
	if err := r.excuse(ctx); err != nil {
		return err
	}
	more, less, err := compare(ctx, r.host, want)
	if err != nil {
		return err
	}
	for _, line := range more {
		r.violate("left behind: %s", line)
	}
	for _, line := range less {
		r.violate("missing: %s", line)
	}
	return nil
}

// excuse removes what others than cryo are known to leave: a ctr that is killed its FIFOs and leases, and containerd the checkpoint that it has unpacked
// for a task that it then did not ask its shim for, or that it was taking when its shim was killed.
func (r *round) excuse(ctx context.Context) error {
	if r.hit && r.choice.Fault == "power" {
		return r.settleDisk(ctx)
	}
	begun := !strings.Contains(r.result.Stderr, "failed to start shim") && !strings.Contains(r.result.Stderr, "failed to write bundle spec")
	if !r.op.stock || !r.hit || begun && !slices.Contains([]string{"ctr", "containerd", "shim", "host"}, r.choice.Target) {
		return nil
	}
	var errs []error
	for _, pattern := range []string{"run/containerd/fifo/*", "xdg/ctrd-checkpoint*"} {
		paths, _ := filepath.Glob(filepath.Join(r.host.Dir, pattern)) // the patterns are well formed
		for _, path := range paths {
			if !slices.Contains(r.before, "file "+path) {
				r.note("excused: %s", path)
				errs = append(errs, os.RemoveAll(path))
			}
		}
	}
	return errors.Join(append(errs, r.excuseLeases(ctx))...)
}

func (r *round) excuseLeases(ctx context.Context) error {
	now, err := trace(ctx, r.host)
	for _, line := range without(now, r.before) {
		if id, is := strings.CutPrefix(line, "lease "); is {
			r.note("excused: %s", line)
			err = errors.Join(err, r.host.Ctr(ctx, "leases", "delete", "--sync", id).Err())
		}
	}
	return err
}

// settleDisk has removed what was removed before the power cut, and is there again since that did not reach the disk: blobs, when the next snapshot is removed,
// descriptions of device memory that nobody keeps any more, when somebody looks for it, and the sockets and leases of restores, when the next one begins: the disk has other numbers when its power
// has come back, and cryo knows what is its own all the same.
func (r *round) settleDisk(ctx context.Context) error {
	err := errors.Join(r.host.Cryo(ctx, "pull", r.world.reference(spare), "--plain-http").Err(), r.host.Cryo(ctx, "rm", r.world.reference(spare)).Err(),
		r.host.Cryo(ctx, "prewarm", "ls").Err())
	if restored := r.host.Cryo(ctx, "restore", r.world.reference("none"), "--pull", "never"); restored.Code != exitNotFound {
		err = errors.Join(err, fmt.Errorf("restore what is not there: %w", restored.Err()))
	}
	return err
}

// ofSubject tells whether a line of a trace is that of the container's task, as it is now.
func (r *round) ofSubject(line string) bool {
	return r.world.life != "" && strings.HasPrefix(line, fmt.Sprintf("task %s %d ", subject, r.world.pid))
}
