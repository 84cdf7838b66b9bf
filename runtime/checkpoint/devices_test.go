package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/runtime/runc"
)

// model is a container with devices that can be seen to be frozen, saved or dead, and refuses what cannot be done then.
type model struct {
	frozen, saved, held, dead bool
	stopped                   bool // by ptrace
	did                       []string
	fail                      string // "step" or "step 2": what fails, and which time
	count                     map[string]int
	outgoing                  Outgoing
	before                    func(step string) // is told of each
	misused                   string
	sockets                   runc.Sockets
}

func (m *model) do(step string) error {
	if m.before != nil {
		m.before(step)
	}
	if m.count == nil {
		m.count = map[string]int{}
	}
	m.count[step]++
	m.did = append(m.did, step)
	if m.fail == step || m.fail == fmt.Sprintf("%s %d", step, m.count[step]) {
		return errFake
	}
	return nil
}

func (m *model) Pause(context.Context) error {
	if m.frozen {
		m.misused = "paused twice"
	}
	if err := m.do("pause"); err != nil {
		return err
	}
	m.frozen = true
	return nil
}

func (m *model) Thaw(context.Context) error {
	if err := m.do("thaw"); err != nil {
		return err
	}
	m.frozen = false
	return nil
}

func (m *model) Paused(context.Context) (bool, error) { return m.frozen, nil }

func (m *model) Kill(context.Context) error {
	if err := m.do("kill"); err != nil {
		return err
	}
	m.dead, m.frozen = true, false
	return nil
}

func (m *model) Silence(context.Context) error { return m.do("silence") }

func (m *model) Processes(context.Context) ([]int, error) { return nil, nil }

func (m *model) Checkpoint(ctx context.Context, d runc.Dump) error {
	if !m.saved {
		m.misused = "dumped with something on devices"
	}
	if err := m.do("dump"); err != nil {
		m.frozen = true // as CRIU leaves it where it was ended
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if d.Exit {
		m.dead, m.frozen = true, false
	}
	for _, name := range []string{"inventory.img", "descriptors.json"} {
		if err := os.WriteFile(filepath.Join(d.Images, name), nil, 0o600); err != nil {
			return err
		}
	}
	return nil
}

func (m *model) Save(context.Context) (Saved, error) {
	if m.frozen || m.saved {
		m.misused = "saved while frozen or saved"
	}
	if err := m.do("save"); err != nil {
		return Saved{}, err
	}
	m.saved, m.held, m.stopped = true, true, true
	return Saved{Since: time.Now(), Lock: time.Second, Save: 2 * time.Second}, nil
}

func (m *model) Load(ctx context.Context) error {
	if m.frozen || !m.saved || ctx.Err() != nil {
		m.misused = "loaded while frozen, not saved or cancelled"
	}
	if err := m.do("load"); err != nil {
		return err
	}
	m.saved, m.held, m.stopped = false, false, false
	return nil
}

func (m *model) Outgoing(ctx context.Context) (Outgoing, error) { return m.outgoing, ctx.Err() }

func (m *model) Drain(ctx context.Context) error {
	if !m.frozen {
		m.misused = "drained while it runs"
	}
	if err := m.do("drain"); err != nil {
		return err
	}
	return ctx.Err()
}

func (m *model) Yield(context.Context) error {
	if !m.frozen || !m.stopped {
		m.misused = "yielded while it runs, or what is not stopped"
	}
	m.stopped = false
	return m.do("yield")
}

func (m *model) Stop(context.Context) error {
	if !m.saved {
		m.misused = "stopped what is not saved"
	}
	m.stopped = true
	return m.do("stop")
}
func (m *model) Dumpable(context.Context) error { return nil }

func (m *model) Record(string) error { return m.do("record") }
func (m *model) Release()            { m.held = false }

func (h modelHolder) Progress() string { return "" }

// TestDevicesAtEveryStep lets each step of each way through the sequence fail, cancels the context there, and has the
// container killed there. It must afterwards be as it was, or gone with a reason.
func TestDevicesAtEveryStep(t *testing.T) {
	watchShortly(t)
	thawTime = time.Microsecond
	ways := []struct {
		name           string
		frozen, parked bool
		exit           bool
		decision       Decision // "": not held
		outgoing       Outgoing
		want           string
	}{
		{name: "plain", want: "save record pause yield dump stop thaw load"},
		{name: "plain, ends", exit: true, want: "save record pause yield dump"},
		{name: "paused", frozen: true, want: "thaw save record pause yield dump"},
		{name: "paused, ends", frozen: true, exit: true, want: "thaw save record pause yield dump"},
		{name: "parked", frozen: true, parked: true, want: "record dump"},
		{name: "held, resumes", decision: Resume, want: "save record pause yield dump held stop thaw load"},
		{name: "held, ends", decision: Kill, want: "save record pause yield dump held silence kill"},
		{name: "held, drains, resumes", outgoing: Outgoing{Any: true}, decision: Resume, want: "save record pause yield dump held drain stop thaw load"},
		{name: "held, drains, ends", outgoing: Outgoing{Any: true}, decision: Kill, want: "save record pause yield dump held drain silence kill"},
		{name: "held, copies, resumes", outgoing: Outgoing{Any: true, Copied: true}, decision: Resume, want: "save record pause yield dump held stop thaw load"},
		{name: "held, copies, ends", outgoing: Outgoing{Any: true, Copied: true}, decision: Kill, want: "save record pause yield dump held drain silence kill"},
		{name: "held, paused, resumes", frozen: true, decision: Resume, want: "thaw save record pause yield dump held"},
		{name: "held, parked, ends", frozen: true, parked: true, decision: Kill, want: "record dump held silence kill"},
	}
	for _, way := range ways {
		steps := strings.Fields(way.want)
		run := func(t *testing.T, m *model) (Result, error) {
			t.Helper()
			m.frozen, m.saved, m.outgoing = way.frozen, way.parked, way.outgoing
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if before := m.before; before != nil {
				m.before = func(step string) {
					before(step)
					if m.fail == "cancel "+step {
						cancel()
					}
				}
			}
			r := Request{
				ID: "c", Frozen: way.frozen, Parked: way.parked, Devices: m, Alive: func() bool { return !m.dead },
				Dump: runc.Dump{Images: t.TempDir(), Exit: way.exit, TCPEstablished: true},
			}
			if way.decision != "" {
				r.Hold = modelHolder{m, way.decision}
			}
			result, err := Run(ctx, m, r)
			if m.misused != "" {
				t.Errorf("%s; did %q", m.misused, m.did)
			}
			return result, err
		}
		// asBefore checks a container that is not dead.
		asBefore := func(t *testing.T, m *model, result Result) {
			t.Helper()
			if m.frozen != way.frozen {
				t.Errorf("frozen is %v; did %q", m.frozen, m.did)
			}
			if m.saved != way.parked || result.Parked != way.parked {
				t.Errorf("saved is %v, parked %v; did %q", m.saved, result.Parked, m.did)
			}
			if m.held {
				t.Errorf("something is held; did %q", m.did)
			}
		}
		t.Run(way.name, func(t *testing.T) {
			m := &model{}
			result, err := run(t, m)
			if err != nil || !slices.Equal(m.did, steps) {
				t.Fatalf("did %q, %v, want %q", m.did, err, steps)
			}
			ends := ends(way.exit, way.decision)
			if pending := way.outgoing.Copied && !ends; result.Pending != pending {
				t.Errorf("pending is %v", result.Pending)
			}
			if stays := way.frozen && !ends; m.frozen != stays || m.saved != stays && !ends || result.Parked != stays || m.dead != ends || m.held {
				t.Errorf("left %+v, %+v", m, result)
			}
		})
		for _, step := range steps {
			t.Run(way.name+", fails at "+step, func(t *testing.T) {
				m := &model{fail: step + " 1"}
				result, err := run(t, m)
				switch {
				case step == "load" || m.dead:
					if !m.dead || !errors.Is(err, failure.ErrLost) {
						t.Errorf("dead is %v, error %v", m.dead, err)
					}
				case err == nil && step == "thaw" && (way.decision == Resume || way.decision == "" && !ends(way.exit, way.decision)): // tried again
				case err == nil && step == "stop": // loading does so too
				default:
					if err == nil || errors.Is(err, failure.ErrLost) || !strings.Contains(err.Error(), "the container runs on") {
						t.Errorf("error %v", err)
					}
					asBefore(t, m, result)
				}
			})
			t.Run(way.name+", cancelled at "+step, func(t *testing.T) {
				m := &model{fail: "cancel " + step, before: func(string) {}}
				result, err := run(t, m)
				switch {
				case err != nil && m.dead:
					t.Errorf("lost: %v; did %q", err, m.did)
				case err != nil:
					asBefore(t, m, result)
				}
			})
			t.Run(way.name+", killed at "+step, func(t *testing.T) {
				m := &model{fail: step + " 1"}
				m.before = func(s string) {
					if s == step {
						m.dead, m.frozen = true, false
					}
				}
				_, err := run(t, m)
				if err == nil && step == "load" || err != nil && !errors.Is(err, failure.ErrLost) {
					t.Errorf("got %v; did %q", err, m.did)
				}
				if m.held {
					t.Errorf("something is held; did %q", m.did)
				}
			})
		}
	}
}

// modelHolder decides as it was told, if it can.
type modelHolder struct {
	m        *model
	decision Decision
}

func (h modelHolder) Released(Result) {}

func (h modelHolder) Dumped(_ context.Context, d Dumped) (Decision, error) {
	if !h.m.frozen {
		h.m.misused = "held while running"
	}
	return h.decision, h.m.do("held")
}

func ends(exit bool, d Decision) bool { return exit || d == Kill }

// TestThawFailsForGood: a container that can neither be thawed nor loaded is ended rather than left as it is.
func TestThawFailsForGood(t *testing.T) {
	watchShortly(t)
	thawTime = time.Hour
	defer func(before time.Duration) { undoTime = before }(undoTime)
	undoTime = 10 * time.Millisecond
	m := &model{fail: "thaw"}
	_, err := Run(t.Context(), m, Request{ID: "c", Devices: m, Alive: func() bool { return !m.dead }, Hold: modelHolder{m, Resume}, Dump: runc.Dump{Images: t.TempDir()}})
	if !errors.Is(err, failure.ErrLost) || !m.dead {
		t.Errorf("dead is %v, error %v", m.dead, err)
	}
}

func TestTimesReachTheHolder(t *testing.T) {
	m := &model{}
	var got Dumped
	h := holderFunc(func(d Dumped) (Decision, error) { got = d; return Resume, nil })
	if _, err := Run(t.Context(), m, Request{ID: "c", Devices: m, Alive: func() bool { return true }, Hold: h, Dump: runc.Dump{Images: t.TempDir()}}); err != nil {
		t.Fatal(err)
	}
	if got.LockSeconds != 1 || got.SaveSeconds != 2 || got.Frozen.IsZero() {
		t.Errorf("got %+v", got)
	}
}

type holderFunc func(Dumped) (Decision, error)

func (holderFunc) Progress() string { return "" }

func (f holderFunc) Dumped(_ context.Context, d Dumped) (Decision, error) { return f(d) }

func (f holderFunc) Released(Result) {}
