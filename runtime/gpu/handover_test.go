package gpu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/spec"
	"github.com/cryo-project/cryo/image/spec/failure"
	"github.com/cryo-project/cryo/runtime/checkpoint"
	"github.com/cryo-project/cryo/runtime/gpu/driver"
	"github.com/cryo-project/cryo/runtime/gpu/library"
)

// take goes through a checkpoint as the sequence does. Whatever fails, Load follows unless nothing was saved.
func take(ctx context.Context, e *Engine, dir string) error {
	defer e.Release()
	if _, err := e.Save(ctx); err != nil {
		return err
	}
	out, err := func() (out checkpoint.Outgoing, err error) {
		if err = e.Record(dir); err != nil {
			return out, err
		}
		if out, err = e.Outgoing(ctx); err != nil || out.Copied {
			return out, err
		}
		if out.Any != (e.pieces > 0) {
			return out, errors.New("it does not tell what is outgoing")
		}
		return out, e.Drain(ctx)
	}()
	if back := e.Load(context.WithoutCancel(ctx)); back != nil {
		return &checkpoint.LossError{Err: errors.Join(err, back)}
	}
	if err == nil && out.Copied {
		err = e.Drain(ctx)
	}
	return err
}

func TestHandOver(t *testing.T) {
	for _, way := range ways {
		t.Run(way.String(), func(t *testing.T) {
			w := newWorld(t, 101, 102, 103)
			w.room = way.room
			w.give(101, 3)
			w.give(102, 1)
			e := w.keeperEngine()
			e.GoesOn = way.goesOn
			dir := t.TempDir()
			if err := take(t.Context(), e, dir); err != nil {
				t.Fatal(err)
			}
			w.settled()
			w.whole()
			if came := <-w.came; came != "101/0\n101/1\n101/2\n102/0\n" {
				t.Errorf("there came %q", came)
			}
			r, err := ReadRecord(dir)
			if err != nil {
				t.Fatal(err)
			}
			if p := r.Processes; r.Engine != spec.KeeperEngine || r.Library.Version != "1" || len(p) != 3 || len(p[0].Pieces) != 3 || len(p[1].Pieces) != 1 ||
				p[0].Fallback != "" || !strings.Contains(p[2].Fallback, "no thread") {
				t.Errorf("record %+v", r)
			}
			order := strings.Join(w.did, ", ")
			for _, pair := range [][2]string{{"ready", "close 101"}, {"close 102", "table 101"}, {"give 102", "release 101"}, {"hold", "room"}, {"release 102", "lock 101"}, {"unlock 103", "attach 101"}, {"attach 102", "open 101"}} {
				if a, b := strings.Index(order, pair[0]), strings.Index(order, pair[1]); a < 0 || b < a {
					t.Errorf("%s is not before %s in %s", pair[0], pair[1], order)
				}
			}
		})
	}
}

// way is whether processes can have copies, and need them.
type way struct{ room, goesOn bool }

func (w way) String() string { return fmt.Sprintf("room %v, goes on %v", w.room, w.goesOn) }

var ways = []way{{false, false}, {false, true}, {true, false}, {true, true}}

// TestSendWaits: where processes get copies, what they gave does not come before they go on.
func TestSendWaits(t *testing.T) {
	for _, end := range []string{"drain", "release", "load and release"} {
		w := newWorld(t, 101)
		w.give(101, 2)
		w.room = true
		e := w.keeperEngine()
		e.GoesOn = true
		if _, err := e.Save(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := e.Record(t.TempDir()); err != nil {
			t.Fatal(err)
		}
		if out, err := e.Outgoing(t.Context()); err != nil || !out.Copied {
			t.Fatal(out, err)
		}
		time.Sleep(10 * time.Millisecond)
		if did := w.steps("send"); did != "" {
			t.Errorf("%s: it did %s", end, did)
		}
		if end != "release" {
			if err := e.Load(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if end == "drain" {
			if err := e.Drain(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		e.Release()
		if came := <-w.came; (came == "101/0\n101/1\n") != (end == "drain") {
			t.Errorf("%s: there came %q", end, came)
		}
		if w.keepers != 0 {
			t.Errorf("%s: %d keepers are left", end, w.keepers)
		}
	}
}

// TestFreezeBegins: a container runs while it is waited for who is to take its memory.
func TestFreezeBegins(t *testing.T) {
	w := newWorld(t, 101)
	w.give(101, 1)
	e := w.keeperEngine()
	saved, err := e.Save(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if saved.Since.Before(w.ready) || saved.Lock > time.Since(w.ready) {
		t.Errorf("it stands still from %s on, %s for its lock; the keeper was ready at %s", saved.Since, saved.Lock, w.ready)
	}
	if err := e.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	e.Release()
}

// TestSendGivenUp: what waits is given up, and that is said, when it takes the room that the processes need, or when one of them may have gone on with it.
func TestSendGivenUp(t *testing.T) {
	hasten(t)
	for _, fail := range []string{"attach 101 2", "attach 102 2", "attach 101 die", "own 101 die", "own 102 die"} {
		w := newWorld(t, 101, 102)
		w.give(101, 2)
		w.give(102, 1)
		w.room = true
		at := strings.LastIndex(fail, " ")
		w.fail, w.how = fail[:at], fail[at+1:]
		e := w.keeperEngine()
		e.GoesOn = true
		if err := take(t.Context(), e, t.TempDir()); !errdefs.IsAborted(err) {
			t.Errorf("%s: got %v", fail, err)
		}
		w.settled()
		w.whole()
	}
}

// TestSendFirst: a process that has no room for a copy after all goes on with what it gave, when that has been sent.
func TestSendFirst(t *testing.T) {
	w := newWorld(t, 101)
	w.give(101, 2)
	w.room, w.tight = true, true
	e := w.keeperEngine()
	e.GoesOn = true
	if err := take(t.Context(), e, t.TempDir()); err != nil {
		t.Fatal(err)
	}
	w.settled()
	w.whole()
	if came := <-w.came; came != "101/0\n101/1\n" {
		t.Errorf("there came %q", came)
	}
	order := strings.Join(w.did, ", ")
	for _, pair := range [][2]string{{"own 101", "send"}, {"send", "end"}, {"end", "open 101"}} {
		if a, b := strings.Index(order, pair[0]), strings.Index(order, pair[1]); a < 0 || b < a {
			t.Errorf("%s is not before %s in %s", pair[0], pair[1], order)
		}
	}
	if left := w.libraries[101].foreign; left != 0 {
		t.Errorf("it has %d pieces of somebody else's", left)
	}
}

// TestHandOverFails lets each step of a hand-over fail in each way. Processes run on with what they had, or are said to be lost.
func TestHandOverFails(t *testing.T) {
	hasten(t)
	var steps []string
	for _, pid := range []int{101, 102} {
		for _, call := range []string{"dial", "hello", "close", "table", "give", "release", "lock", "checkpoint", "restore", "unlock", "attach", "own", "open"} {
			steps = append(steps, fmt.Sprintf("%s %d", call, pid))
		}
	}
	for _, step := range append(steps, "ready", "hold", "room", "send") {
		for _, how := range []string{"1", "2", "die", "end", "hang", "cancel"} {
			for _, way := range ways {
				room := way.room
				call, number, _ := strings.Cut(step, " ")
				driver := strings.Contains("lock checkpoint restore unlock", call)
				if how == "hang" && (call != "send" || !room || way.goesOn) || !room && way.goesOn || how == "end" && number == "" || driver && how == "2" {
					continue
				}
				t.Run(fmt.Sprintf("%s %s, %s", step, how, way), func(t *testing.T) {
					w := newWorld(t, 101, 102)
					w.give(101, 2)
					w.give(102, 1)
					w.room, w.fail, w.how = room, step, how
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					w.cancel = cancel
					if how == "hang" {
						e := w.keeperEngine()
						if _, err := e.Save(ctx); err != nil {
							t.Fatal(err)
						}
						if err := e.Record(t.TempDir()); err != nil {
							t.Fatal(err)
						}
						if out, err := e.Outgoing(ctx); err != nil || !out.Copied {
							t.Fatal(out, err)
						}
						if err := e.Load(ctx); err != nil {
							t.Fatal(err)
						}
						e.Release()
						w.settled()
						w.whole()
						return
					}
					e := w.keeperEngine()
					e.GoesOn = way.goesOn
					err := take(ctx, e, t.TempDir())
					var loss *checkpoint.LossError
					// The driver's word, and the library's, that something is gone.
					gone := (call == "restore" || call == "unlock") && how == "1" || call == "own" && (how == "1" || how == "2")
					if errors.As(err, &loss) != gone {
						t.Errorf("lost: %v; did %q", err, w.did)
					}
					if gone {
						return
					}
					w.settled()
					w.whole()
				})
			}
		}
	}
}

// TestNoWayBack: a process that cannot be given its memory is lost, and no descriptor is left.
func TestNoWayBack(t *testing.T) {
	hasten(t)
	for _, test := range []struct {
		fail, how string
		mistaken  []int
	}{{"attach 101", "1", nil}, {"make own 101", "2", []int{101}}, {"copy", "1", []int{101}}, {"filled 101", "1", []int{101}}} {
		w := newWorld(t, 101)
		w.give(101, 2)
		w.fail, w.how, w.always, w.mistaken = test.fail, test.how, true, test.mistaken
		err := take(t.Context(), w.keeperEngine(), t.TempDir())
		var loss *checkpoint.LossError
		if !errors.As(err, &loss) {
			t.Errorf("%s: got %v", test.fail, err)
		}
		for _, f := range w.files {
			if _, err := f.Stat(); !errors.Is(err, os.ErrClosed) {
				t.Errorf("%s: %s is left open", test.fail, f.Name())
			}
		}
		if w.keepers != 0 {
			t.Errorf("%s: %d keepers are left", test.fail, w.keepers)
		}
	}
}

func TestHandOverLate(t *testing.T) {
	hasten(t)
	w := newWorld(t, 101, 102)
	w.give(101, 1)
	w.give(102, 1)
	w.fail, w.how, w.always = "close 102", "busy", true
	_, err := w.keeperEngine().Save(t.Context())
	if !says(err, "work still ran") || !says(err, "process 102") || says(err, "process 101") {
		t.Errorf("got %v", err)
	}
	w.settled()
	w.whole()
}

// TestHandOverCapturing: a capture is waited for, and never cut off.
func TestHandOverCapturing(t *testing.T) {
	hasten(t)
	for _, pids := range [][]int{{101}, {101, 102}} {
		w := newWorld(t, pids...)
		for _, pid := range pids {
			w.give(pid, 1)
		}
		w.fail, w.how, w.always = "close 101", "capturing", true
		_, err := w.keeperEngine().Save(t.Context())
		if !says(err, "CUDA graph") || !says(err, "process 101") || says(err, "process 102") || !errdefs.IsFailedPrecondition(err) {
			t.Errorf("got %v", err)
		}
		if did := w.steps("lock", "table", "give"); did != "" {
			t.Errorf("it did %s", did)
		}
		w.settled()
		w.whole()
	}
	// It ends before the deadline.
	w := newWorld(t, 101, 102)
	w.give(101, 1)
	w.give(102, 1)
	w.fail, w.how = "close 101", "capturing"
	e := w.keeperEngine()
	e.Timeout = time.Minute
	if err := take(t.Context(), e, t.TempDir()); err != nil {
		t.Error(err)
	}
	w.settled()
	w.whole()
}

// TestEndsByItself: a process that ends before it has let go of anything is of no concern; afterwards what it gave is in nobody's record.
func TestEndsByItself(t *testing.T) {
	hasten(t)
	for _, step := range []string{"dial", "hello", "close", "table", "give", "release"} {
		for _, pids := range [][]int{{101}, {101, 102}} {
			t.Run(fmt.Sprintf("%s of %d", step, len(pids)), func(t *testing.T) {
				w := newWorld(t, pids...)
				for _, pid := range pids {
					w.give(pid, 2)
				}
				w.fail, w.how = step+" 101", "end"
				dir := t.TempDir()
				err := take(t.Context(), w.keeperEngine(), dir)
				w.settled()
				w.whole()
				if step == "release" {
					if err == nil {
						t.Error("what it has let go of is nowhere, and nobody says so")
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				r, err := ReadRecord(dir)
				if err != nil || r != nil && (len(r.Processes) != len(pids)-1 || len(pids) > 1 && len(r.Processes[0].Pieces) != 2) {
					t.Errorf("record %+v, %v", r, err)
				}
			})
		}
	}
}

// TestKeeperOnly: where all are to hand their memory over, nothing is done to any before it is known that they can.
func TestKeeperOnly(t *testing.T) {
	for name, test := range map[string]struct {
		change func(w *world, e *Engine)
		want   string
	}{
		"unable":          {func(w *world, _ *Engine) { w.libraries[102].unable = "it has asked for IPC handles" }, "IPC"},
		"no library":      {func(w *world, _ *Engine) { delete(w.libraries, 102) }, "no thread"},
		"nobody takes it": {func(_ *world, e *Engine) { e.Handover, e.Fallback = nil, "the client does not" }, "the client"},
		"not made for it": {func(_ *world, e *Engine) { e.Handover, e.Library = nil, nil }, "not made for"},
		"no keeper":       {func(w *world, _ *Engine) { w.noKeeper = true }, "not exist"},
		"full device":     {func(w *world, _ *Engine) { w.fail, w.how = "ready", "2" }, "ready"},
		"at the gate":     {func(w *world, _ *Engine) { w.fail, w.how = "close 102", "unable" }, "as ordered"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 101, 102)
			w.give(101, 1)
			w.give(102, 1)
			e := w.keeperEngine()
			e.KeeperOnly = true
			test.change(w, e)
			err := take(t.Context(), e, t.TempDir())
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v", err)
			}
			if did := w.steps("lock", "give"); did != "" {
				t.Errorf("it did %s", did)
			}
			w.settled()
			w.whole()
		})
	}
}

func TestFallbacks(t *testing.T) {
	for name, test := range map[string]struct {
		change func(w *world, e *Engine)
		want   string
	}{
		"unable":          {func(w *world, _ *Engine) { w.libraries[101].unable = "it has asked for IPC handles" }, "IPC"},
		"does not answer": {func(w *world, _ *Engine) { w.fail, w.how = "hello 101", "die" }, "as ordered"},
		"nobody takes it": {func(_ *world, e *Engine) { e.Handover, e.Fallback = nil, "the client does not" }, "the client"},
		"no library":      {func(w *world, _ *Engine) { delete(w.libraries, 101) }, "no thread"},
		"no keeper":       {func(w *world, _ *Engine) { w.noKeeper = true }, "nothing can take its memory"},
		"full device":     {func(w *world, _ *Engine) { w.fail, w.how = "ready", "2" }, "nothing can take its memory"},
		"keeper dies":     {func(w *world, _ *Engine) { w.fail, w.how = "ready", "die" }, "nothing can take its memory"},
		"at the gate":     {func(w *world, _ *Engine) { w.fail, w.how = "close 101", "unable" }, "as ordered"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 101)
			w.give(101, 1)
			w.libraries[101].foreign = 1 // which the driver could not bring back
			e := w.keeperEngine()
			if name == "does not answer" {
				w.libraries[101].foreign = 0
			}
			test.change(w, e)
			dir := t.TempDir()
			if err := take(t.Context(), e, dir); err != nil {
				t.Fatal(err)
			}
			r, err := ReadRecord(dir)
			if err != nil || len(r.Processes) != 1 || len(r.Processes[0].Pieces) != 0 || !strings.Contains(r.Processes[0].Fallback, test.want) {
				t.Errorf("record %+v, %v", r, err)
			}
			if l := w.libraries[101]; l != nil && l.foreign > 0 {
				t.Error("the driver was asked to save memory of somebody else")
			}
			w.settled()
			w.whole()
		})
	}
}

// TestGivenBefore: the memory of a process is with a shim that has died.
func TestGivenBefore(t *testing.T) {
	w := newWorld(t, 101)
	w.give(101, 1)
	w.libraries[101].state = library.Given
	_, err := w.keeperEngine().Save(t.Context())
	if !says(err, "handed over before") {
		t.Errorf("got %v", err)
	}
}

// TestForeign: the driver is not asked to save what it would not restore.
func TestForeign(t *testing.T) {
	for _, stuck := range []int{0, 1} {
		for name, change := range map[string]func(w *world, e *Engine){
			"no hand-over": func(_ *world, e *Engine) { e.Handover = nil },
			"unable":       func(w *world, _ *Engine) { w.libraries[101].unable = "it has asked for an IPC handle" },
		} {
			t.Run(fmt.Sprintf("%s, %d stuck", name, stuck), func(t *testing.T) {
				w := newWorld(t, 101)
				w.give(101, 3)
				w.libraries[101].foreign, w.libraries[101].stuck = 2, stuck
				e := w.keeperEngine()
				change(w, e)
				err := take(t.Context(), e, t.TempDir())
				w.settled()
				w.whole()
				if says(err, "are not its own yet") != (stuck > 0) || stuck == 0 && err != nil {
					t.Errorf("error: %v", err)
				}
				if order := strings.Join(w.did, ", "); stuck > 0 && strings.Contains(order, "lock") || w.libraries[101].state != library.Whole {
					t.Errorf("it did %s, and the library's state is %v", order, w.libraries[101].state)
				}
			})
		}
	}
}

// TestForeignUnable: a library that does not close its gate cannot make memory the process's own.
func TestForeignUnable(t *testing.T) {
	w := newWorld(t, 101)
	w.give(101, 3)
	w.libraries[101].foreign, w.libraries[101].unable = 2, "it has asked for an IPC handle"
	w.fail, w.how = "close 101", "unable"
	_, err := w.keeperEngine().Save(t.Context())
	if !says(err, "2 pieces of device memory") {
		t.Errorf("got %v", err)
	}
	w.settled()
	w.whole()
}

// TestHandOverNeedsNoMemory: what is handed over does not have to fit into the host's memory, and what is not does.
func TestHandOverNeedsNoMemory(t *testing.T) {
	for pieces, refused := range map[int]bool{500: false, 10: true} {
		w := newWorld(t, 101)
		w.give(101, pieces)
		w.write("proc/meminfo", "MemAvailable: 262144 kB\n") // 256 MiB, of which there is a margin
		err := take(t.Context(), w.keeperEngine(), t.TempDir())
		if (err != nil && failure.Class(err) == hostMemoryRule.Name) != refused || !refused && err != nil {
			t.Errorf("%d of 512 pieces: %v", pieces, err)
		}
		w.settled()
		w.whole()
	}
}

// snapshotSource brings what a test says.
type snapshotSource struct {
	peer   *os.File
	err    error
	closed bool
}

func (s *snapshotSource) Peer() *os.File { return s.peer }
func (s *snapshotSource) Wait() error    { return s.err }
func (s *snapshotSource) Close() error {
	s.closed = true
	return nil
}

// snapshot is processes 101 and 102 of a world's, as CRIU restores them after they have handed three pieces over, and the record of that.
func snapshot(t *testing.T) (*world, *Record) {
	t.Helper()
	w := newWorld(t, 101, 102)
	w.give(101, 2)
	w.give(102, 1)
	dir := t.TempDir()
	if err := take(t.Context(), w.keeperEngine(), dir); err != nil {
		t.Fatal(err)
	}
	w.files, w.did = nil, nil
	r, err := ReadRecord(dir)
	if err != nil {
		t.Fatal(err)
	}
	for pid, l := range w.libraries {
		w.states[pid], l.state, l.memory = driver.Checkpointed, library.Given, make([]string, len(l.memory))
	}
	return w, r
}

// handed is a restore of them onto another GPU.
func handed(t *testing.T) (*world, *Restore, *snapshotSource) {
	t.Helper()
	w, r := snapshot(t)
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(writer, "101/0\n101/1\n102/0")
	writer.Close()
	source := &snapshotSource{peer: reader}
	c := w.container()
	c.Minors = []int{1}
	return w, &Restore{Container: c, Record: *r, Handover: w.handover(), Bring: func() (Source, error) { return source, nil }}, source
}

// TestRestoreHanded restores processes that have handed memory over, onto another GPU, with every failure.
func TestRestoreHanded(t *testing.T) {
	hasten(t)
	for _, step := range []string{"", "make", "receive", "restore 101", "dial 101", "attach 102", "open 102", "bring"} {
		t.Run(step, func(t *testing.T) {
			w, restore, source := handed(t)
			w.fail, w.how = step, "1"
			if step == "receive" {
				source.err, w.how = os.ErrPermission, "gone"
			}
			if step == "bring" {
				restore.Bring = func() (Source, error) { return nil, os.ErrPermission }
			}
			err := fits(t, restore)
			if err == nil {
				_, err = restore.Load(t.Context())
			}
			restore.Close()
			again := strings.HasPrefix(step, "dial") || strings.HasPrefix(step, "attach") || strings.HasPrefix(step, "open")
			if fine := step == "" || again; (err == nil) != fine {
				t.Errorf("got %v; did %q", err, w.did)
			} else if fine {
				w.settled()
				w.whole()
			}
			if step == "receive" && !errors.Is(err, os.ErrPermission) {
				t.Errorf("the reason is %v", err)
			}
			if step != "bring" && !source.closed || w.keepers != 0 {
				t.Errorf("closed is %v, %d keepers are left", source.closed, w.keepers)
			}
			if w.libraries[101].state == library.Whole && w.states[101] != driver.Running {
				t.Error("a gate is open before the driver is")
			}
		})
	}
}

// TestRestoreMistaken: where the driver of a process does not find memory that it is given, the process makes its own, and that is filled from what was loaded. Where
// that fails it is tried again, and the process goes on with what it is to have, or not at all.
func TestRestoreMistaken(t *testing.T) {
	hasten(t)
	for name, test := range map[string]struct {
		pids       []int // that are mistaken
		fail, how  string
		always     bool
		keepers    int
		lost, dies bool
	}{
		"filled":                               {pids: []int{101, 102}, keepers: 1},
		"one of them":                          {pids: []int{102}, keepers: 1},
		"by another keeper":                    {pids: []int{101, 102}, fail: "copy", how: "1", keepers: 2},
		"by another keeper than one that dies": {pids: []int{101, 102}, fail: "copy", how: "die", keepers: 2},
		"by no keeper":                         {pids: []int{101, 102}, fail: "copy", how: "1", always: true, lost: true},
		"no room for now":                      {pids: []int{101, 102}, fail: "make own 101", how: "2"},
		"no room":                              {pids: []int{101, 102}, fail: "make own 101", how: "2", always: true, lost: true},
		"nothing is made":                      {pids: []int{101, 102}, fail: "make own 102", how: "1", always: true, lost: true},
		"it hangs up":                          {pids: []int{101, 102}, fail: "make own 102", how: "cut", keepers: 1},
		"it is not known to be filled":         {pids: []int{101, 102}, fail: "filled 101", how: "1", keepers: 1},
		"one ends":                             {pids: []int{101, 102}, fail: "make own 102", how: "end", keepers: 1, dies: true},
	} {
		t.Run(name, func(t *testing.T) {
			w, restore, source := handed(t)
			w.mistaken, w.fail, w.how, w.always = test.pids, test.fail, test.how, test.always
			keepers := 0
			w.launched = func() { keepers++ }
			err := fits(t, restore)
			if err == nil {
				_, err = restore.Load(t.Context())
			}
			restore.Close()
			if (err != nil) != test.lost || test.keepers > 0 && keepers != test.keepers {
				t.Errorf("got %v, %d keepers; did %q", err, keepers, w.did)
			}
			if !test.lost {
				if !test.dies {
					w.settled()
				}
				w.whole()
			}
			for pid, l := range w.libraries {
				for i, m := range l.memory {
					if want := fmt.Sprintf("%d/%d", pid, i); l.state == library.Whole && m != want {
						t.Errorf("process %d goes on with %q as %s; did %q", pid, m, want, w.did)
					}
				}
			}
			if !source.closed || w.keepers != 0 {
				t.Errorf("closed is %v, %d keepers are left", source.closed, w.keepers)
			}
		})
	}
}

// TestHandOverMistaken: a process whose driver does not find what it is given gets its memory back by making it, whatever fails meanwhile.
func TestHandOverMistaken(t *testing.T) {
	hasten(t)
	for _, fail := range []string{
		"", "copy 1", "copy die", "make own 101 1", "make own 101 2", "make own 101 cut", "make own 102 2", "make own 102 end", "filled 101 1", "filled 102 cut",
		"open 101 1", "room for one 1", "room for one die", "send 1", "hold 1", "hold die", "checkpoint 101 1", "release 101 cut", "release 102 1",
	} {
		for _, way := range ways {
			t.Run(fmt.Sprintf("%s, %s", fail, way), func(t *testing.T) {
				w := newWorld(t, 101, 102, 103)
				w.give(101, 3)
				w.give(102, 1)
				w.give(103, 2)
				w.mistaken, w.room = []int{101, 102}, way.room
				if at := strings.LastIndex(fail, " "); at > 0 {
					w.fail, w.how = fail[:at], fail[at+1:]
				}
				e := w.keeperEngine()
				e.GoesOn = way.goesOn
				err := take(t.Context(), e, t.TempDir())
				if loss := (*checkpoint.LossError)(nil); errors.As(err, &loss) || fail == "" && err != nil {
					t.Errorf("got %v; did %q", err, w.did)
				}
				w.whole()
				if err == nil {
					if came := <-w.came; came != "101/0\n101/1\n101/2\n102/0\n103/0\n103/1\n" {
						t.Errorf("there came %q; did %q", came, w.did)
					}
				}
				if order := strings.Join(w.did, ", "); fail == "" && (slices.Contains(w.did, "own 101") || slices.Contains(w.did, "own 102") || strings.Count(order, "copy") != 4) {
					t.Errorf("did %q", order)
				}
			})
		}
	}
}

// TestHandOverCrammed: a process that could not be given its memory back goes by the driver, before it has let go of any.
func TestHandOverCrammed(t *testing.T) {
	for _, only := range []bool{false, true} {
		w := newWorld(t, 101, 102)
		w.give(101, 3)
		w.give(102, 1)
		w.mistaken, w.crammed = []int{101}, true
		e := w.keeperEngine()
		e.KeeperOnly = only
		dir := t.TempDir()
		err := take(t.Context(), e, dir)
		w.settled()
		w.whole()
		if steps := w.steps("release 101"); steps != "" {
			t.Errorf("it did %s", steps)
		}
		if only {
			if !says(err, "cannot hand its memory over") {
				t.Errorf("got %v", err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if came := <-w.came; came != "102/0\n" {
			t.Errorf("there came %q", came)
		}
		r, err := ReadRecord(dir)
		if err != nil {
			t.Fatal(err)
		}
		if p := r.Processes; len(p[0].Pieces) != 0 || !strings.Contains(p[0].Fallback, "no room") || len(p[1].Pieces) != 1 {
			t.Errorf("record %+v", p)
		}
	}
}

// TestRestoreBegins: nobody waits for the driver, whose keeper starts with the helper and is told its devices as soon as these are known.
// What was begun ends with the restore.
func TestRestoreBegins(t *testing.T) {
	hasten(t)
	for name, misfit := range map[string]bool{"fits": false, "does not": true} {
		t.Run(name, func(t *testing.T) {
			w, restore, source := handed(t)
			slow := make(chan struct{})
			start := restore.Start
			restore.Start = func(ctx context.Context) (Driver, error) {
				select {
				case <-slow:
					return start(ctx)
				case <-ctx.Done():
					return nil, context.Cause(ctx)
				}
			}
			if misfit {
				w.facts.Devices[1].Architecture = "10.0"
			}
			if err := restore.Begin(t.Context()); err != nil {
				t.Fatal(err)
			}
			for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
				w.mu.Lock()
				launched := w.keepers == 1
				w.mu.Unlock()
				if launched {
					break
				}
				if time.Now().After(deadline) {
					t.Fatal("the keeper waits for the helper")
				}
			}
			close(slow)
			err := restore.Fits()
			var wrong *MisfitError
			if misfit != errors.As(err, &wrong) || !misfit && err != nil {
				t.Errorf("got %v", err)
			}
			if again := restore.Fits(); again != err {
				t.Errorf("the second time it is %v", again)
			}
			w.mu.Lock()
			if made := slices.Contains(w.did, "make"); made == misfit {
				t.Errorf("did %q", w.did)
			}
			if misfit && (w.keepers != 0 || !source.closed) {
				t.Errorf("%d keepers are left, the source is closed: %v", w.keepers, source.closed)
			}
			w.mu.Unlock()
			restore.Close()
			w.mu.Lock()
			defer w.mu.Unlock()
			w.quiet()
			if w.keepers != 0 || !source.closed {
				t.Errorf("%d keepers are left, the source is closed: %v", w.keepers, source.closed)
			}
		})
	}
}

// TestRestoreGivenUp closes a restore whose helper does not come.
func TestRestoreGivenUp(t *testing.T) {
	w, restore, _ := handed(t)
	never := func(ctx context.Context) error {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	restore.Start = func(ctx context.Context) (Driver, error) { return nil, never(ctx) }
	if err := restore.Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		restore.Close()
	}()
	select {
	case <-closed:
	case <-time.After(10 * time.Second):
		t.Fatal("it does not end")
	}
	if w.keepers != 0 || restore.Fits() == nil {
		t.Errorf("%d keepers are left, and it fits: %v", w.keepers, restore.Fits())
	}
}

// TestLoading: who waits for something else hears that device memory cannot be loaded, and of nothing where it can.
func TestLoading(t *testing.T) {
	hasten(t)
	for _, fails := range []bool{true, false} {
		_, restore, source := handed(t)
		if fails {
			source.peer.Close()
			source.err = os.ErrPermission
		}
		if err := fits(t, restore); err != nil {
			t.Fatal(err)
		}
		ctx, stop := restore.Loading(t.Context())
		select {
		case <-ctx.Done():
			if !fails || !errors.Is(context.Cause(ctx), os.ErrPermission) {
				t.Errorf("it ends with %v", context.Cause(ctx))
			}
		case <-time.After(100 * time.Millisecond):
			if fails {
				t.Error("it is not heard")
			}
		}
		stop()
		restore.Close()
	}
}

// TestRestoreKeeperEnds: the keeper is ended when all memory is attached, unless its room is wanted; it is waited for in either case.
func TestRestoreKeeperEnds(t *testing.T) {
	hasten(t)
	for name, tight := range map[string]bool{"room": false, "no room": true} {
		t.Run(name, func(t *testing.T) {
			w, restore, _ := handed(t)
			w.tight, w.ending = tight, make(chan struct{})
			if err := fits(t, restore); err != nil {
				t.Fatal(err)
			}
			loaded := make(chan error, 1)
			go func() {
				_, err := restore.Load(t.Context())
				loaded <- err
			}()
			if tight {
				select {
				case err := <-loaded:
					t.Errorf("the keeper's room was not waited for: %v", err)
				case <-time.After(50 * time.Millisecond):
				}
				close(w.ending)
			}
			select {
			case err := <-loaded:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(10 * time.Second):
				t.Fatal("the keeper is waited for")
			}
			w.mu.Lock()
			if ended := slices.Contains(w.did, "end"); ended != tight {
				t.Errorf("when all is attached, did %q", w.did)
			}
			w.mu.Unlock()
			if !tight {
				if w.libraries[101].state != library.Whole {
					t.Error("a gate is closed still")
				}
				time.AfterFunc(20*time.Millisecond, func() { close(w.ending) })
			}
			restore.Close()
			w.whole()
			for pid, l := range w.libraries {
				if l.foreign > 0 {
					t.Errorf("process %d: %d pieces are not its own; did %q", pid, l.foreign, w.did)
				}
			}
		})
	}
}
