package checkpoint

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/runtime/runc"
)

// fake is a container that writes down what is done to it.
type fake struct {
	did  []string
	fail string // step that fails
	dead bool
	pids []int

	paused bool // by the client

	sockets        runc.Sockets
	unacknowledged int // how many looks at the sockets find something on its way
}

var errFake = errors.New("as ordered")

func (f *fake) do(step string) error {
	f.did = append(f.did, step)
	if f.fail == step {
		return errFake
	}
	return nil
}

func (f *fake) Pause(context.Context) error { return f.do("pause") }
func (f *fake) Thaw(context.Context) error  { return f.do("thaw") }
func (f *fake) Kill(context.Context) error  { return f.do("kill") }

// Paused is asked of what was paused in the beginning, and of what was let go on.
func (f *fake) Paused(context.Context) (bool, error) {
	return (f.paused || slices.Contains(f.did, "pause")) && !slices.Contains(f.did, "thaw"), nil
}

func (f *fake) Silence(context.Context) error { return f.do("silence") }

func (f *fake) Processes(context.Context) ([]int, error) { return f.pids, nil }
func (f *fake) Checkpoint(_ context.Context, d runc.Dump) error {
	step := "dump"
	if d.Exit {
		step = "dump and exit"
	}
	if err := f.do(step); err != nil {
		return err
	}
	for _, name := range []string{"inventory.img", "descriptors.json"} {
		if err := os.WriteFile(filepath.Join(d.Images, name), nil, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// holder decides as it was told.
type holder struct {
	f        *fake
	decision Decision
	err      error
}

func (h holder) Dumped(context.Context, Dumped) (Decision, error) {
	h.f.did = append(h.f.did, "held")
	return h.decision, h.err
}

func (h holder) Released(Result) {}

// watchShortly has containers observed for next to no time, for tests of what comes before.
func watchShortly(t *testing.T) {
	before := watchTime
	t.Cleanup(func() { watchTime = before })
	watchTime = 0
}

func (h holder) Progress() string { return "" }

func (f *fake) Dumpable(context.Context) error {
	if f.fail == "stopped" {
		return errFake
	}
	return nil
}

func TestRun(t *testing.T) {
	watchShortly(t)
	tests := []struct {
		name   string
		fail   string
		frozen bool
		exit   bool
		tcp    bool
		hold   *holder
		want   []string
		err    bool
	}{
		{name: "plain", want: []string{"dump"}},
		{name: "plain, ends", exit: true, want: []string{"dump and exit"}},
		{name: "stopped", fail: "stopped", hold: &holder{}, err: true},
		{name: "plain, dump fails", fail: "dump", want: []string{"dump", "thaw"}, err: true},
		{name: "paused by the client", frozen: true, want: []string{"dump"}},
		{name: "paused by the client, dump fails", frozen: true, fail: "dump", want: []string{"dump"}, err: true},
		{name: "held, resume", hold: &holder{decision: Resume}, want: []string{"pause", "dump", "held", "thaw"}},
		{name: "held, kill", exit: true, hold: &holder{decision: Kill}, want: []string{"pause", "dump", "held", "kill"}},
		{name: "held, kill with connections", tcp: true, hold: &holder{decision: Kill}, want: []string{"pause", "dump", "held", "silence", "kill"}},
		{name: "held, connections not silenced", tcp: true, fail: "silence", hold: &holder{decision: Kill}, want: []string{"pause", "dump", "held", "silence", "thaw"}, err: true},
		{name: "held, resume with connections", tcp: true, hold: &holder{decision: Resume}, want: []string{"pause", "dump", "held", "thaw"}},
		{name: "held, paused before", frozen: true, hold: &holder{decision: Resume}, want: []string{"dump", "held"}},
		{name: "held, pause fails", fail: "pause", hold: &holder{}, want: []string{"pause", "thaw"}, err: true},
		{name: "held, dump fails", fail: "dump", hold: &holder{}, want: []string{"pause", "dump", "thaw"}, err: true},
		{name: "held, command gone", hold: &holder{err: errFake}, want: []string{"pause", "dump", "held", "thaw"}, err: true},
		{name: "held, nonsense", hold: &holder{decision: "fly"}, want: []string{"pause", "dump", "held", "thaw"}, err: true},
		{name: "held, kill fails", fail: "kill", hold: &holder{decision: Kill}, want: []string{"pause", "dump", "held", "kill", "thaw"}, err: true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f := &fake{fail: test.fail, paused: test.frozen}
			r := Request{ID: "c", Frozen: test.frozen, Alive: func() bool { return !f.dead }, Dump: runc.Dump{Images: t.TempDir(), Exit: test.exit, TCPEstablished: test.tcp}}
			if test.hold != nil {
				test.hold.f = f
				r.Hold = *test.hold
			}
			_, err := Run(t.Context(), f, r)
			if !slices.Equal(f.did, test.want) {
				t.Errorf("did %q, want %q", f.did, test.want)
			}
			if (err != nil) != test.err {
				t.Errorf("error %v", err)
			}
			if err != nil && !errors.Is(err, errdefs.ErrAborted) {
				t.Errorf("error %v is not of kind Aborted", err)
			}
		})
	}
}

func TestRunReportsLoss(t *testing.T) {
	f := &fake{fail: "dump"}
	_, err := Run(t.Context(), f, Request{ID: "c", Alive: func() bool { return false }, Dump: runc.Dump{Images: t.TempDir()}})
	if !errors.Is(err, failure.ErrLost) || !errors.Is(err, errdefs.ErrInternal) {
		t.Errorf("got %v", err)
	}
}

func TestCauseHasPrecedence(t *testing.T) {
	err := Failed("c", context.Canceled)
	if errdefs.Resolve(err) != context.Canceled {
		t.Errorf("kind of %v is %v", err, errdefs.Resolve(err))
	}
	if err := Failed("c", errFake); errdefs.Resolve(err) != errdefs.ErrAborted {
		t.Errorf("kind of %v is %v", err, errdefs.Resolve(err))
	}
}

// idle is a holder that never decides.
type idle struct{ holder }

func (h idle) Dumped(ctx context.Context, _ Dumped) (Decision, error) {
	h.f.did = append(h.f.did, "held")
	<-ctx.Done()
	return "", context.Cause(ctx)
}

// TestIdleHolder lets a container go on whose holder does nothing, such as a command that was stopped.
func TestIdleHolder(t *testing.T) {
	f := &fake{}
	r := Request{ID: "c", Alive: func() bool { return true }, Hold: idle{holder{f: f}}, Dump: runc.Dump{Images: t.TempDir(), Patience: 50 * time.Millisecond}}
	_, err := Run(t.Context(), f, r)
	if want := []string{"pause", "dump", "held", "thaw"}; !slices.Equal(f.did, want) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("did %q, %v", f.did, err)
	}
}
