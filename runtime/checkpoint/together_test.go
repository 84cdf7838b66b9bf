package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/runtime/runc"
)

// opens is a fence that writes down when it is removed.
type opens struct {
	did  func(step string) error
	name string
}

func (o opens) Close() error { return o.did("open " + o.name) }

// fence is one that did writes down.
func fence(did func(string) error, name string) (io.Closer, error) {
	if err := did(name); err != nil {
		return nil, err
	}
	return opens{did, name}, nil
}

func (f *fake) Fence(runc.Sockets) (io.Closer, error)          { return fence(f.do, "fence") }
func (f *fake) TurnAway([]netip.AddrPort) (io.Closer, error)   { return fence(f.do, "gate") }
func (f *fake) Sockets(context.Context) (runc.Sockets, error)  { return f.look() }
func (m *model) Fence(runc.Sockets) (io.Closer, error)         { return fence(m.do, "fence") }
func (m *model) TurnAway([]netip.AddrPort) (io.Closer, error)  { return fence(m.do, "gate") }
func (m *model) Sockets(context.Context) (runc.Sockets, error) { return m.sockets, m.do("look") }

// look returns the sockets of a container whose program accepts one connection each time that it runs. The first looks find segments that are on their way.
func (f *fake) look() (runc.Sockets, error) {
	if f.fail == "look" {
		return runc.Sockets{}, errFake
	}
	s := f.sockets
	if f.unacknowledged > 0 {
		f.unacknowledged--
		s.Unacknowledged = 1
	}
	accepted := 0
	for _, step := range f.did {
		if step == "thaw" {
			accepted++
		}
	}
	s.Waiting = s.Waiting[min(accepted, len(s.Waiting)):]
	return s, nil
}

// named returns what a holder's step is called: it waits for its turn, and then with its connections cut.
func (h Held) named() string {
	if h.Cut {
		return "wait"
	}
	return "turn"
}

func (h holder) Held(ctx context.Context, held Held) error {
	if err := h.f.do(held.named()); err != nil {
		return err
	}
	return context.Cause(ctx)
}

func (h modelHolder) Held(ctx context.Context, held Held) error {
	if !h.m.frozen {
		h.m.misused = "waits while running"
	}
	if err := h.m.do(held.named()); err != nil {
		return err
	}
	return context.Cause(ctx)
}

func (holderFunc) Held(context.Context, Held) error { return nil }
func (onRelease) Held(context.Context, Held) error  { return nil }

// listens are the sockets of a server with connections that wait.
func listens(waiting int) runc.Sockets {
	at := netip.MustParseAddrPort("10.0.0.1:80")
	s := runc.Sockets{Listeners: []netip.AddrPort{at}, Connections: []runc.Connection{{Local: at, Remote: netip.MustParseAddrPort("10.0.0.2:1000")}}}
	for i := range waiting {
		s.Waiting = append(s.Waiting, runc.Connection{Local: at, Remote: netip.AddrPortFrom(netip.MustParseAddr("10.0.0.3"), uint16(1+i))})
	}
	return s
}

// closes returns the sockets of a container that has closed a connection, of which the peer has not taken the last data.
func closes(to string) runc.Sockets {
	s := listens(0)
	s.Closing = []runc.Connection{{Local: s.Listeners[0], Remote: netip.MustParseAddrPort(to)}}
	return s
}

// TestTogether has a container saved in step with others: whatever fails, its connections go on, and it runs as before.
func TestTogether(t *testing.T) {
	watchShortly(t)
	const plain = "pause, turn, gate, fence, wait, dump, held, open fence, open gate, thaw"
	again := "pause, turn, gate, fence, open fence, thaw, pause, fence, open fence, thaw, pause, fence, wait, dump, held, open fence, open gate, thaw"
	for name, test := range map[string]struct {
		fail     string
		frozen   bool
		sockets  runc.Sockets
		decision Decision
		want     string
		rule     string // of the error
		err      bool
	}{
		"goes on":                    {sockets: listens(0), want: plain},
		"ends":                       {sockets: listens(0), decision: Kill, want: "pause, turn, gate, fence, wait, dump, held, silence, kill, open fence, open gate"},
		"listens to nothing":         {want: "pause, turn, fence, wait, dump, held, open fence, thaw"},
		"paused before":              {sockets: listens(0), frozen: true, want: "turn, gate, fence, wait, dump, held, open fence, open gate"},
		"accepts":                    {sockets: listens(2), want: again},
		"paused before, with a peer": {sockets: listens(1), frozen: true, want: "turn, gate, fence, open fence, open gate", rule: ArrivingRule, err: true},
		"accepts nothing":            {sockets: listens(arriveMost), rule: ArrivingRule, err: true},
		"not listed":                 {fail: "look", want: "pause, turn, thaw", err: true},
		"not turned away":            {fail: "gate", sockets: listens(0), want: "pause, turn, gate, thaw", err: true},
		"not cut":                    {fail: "fence", sockets: listens(0), want: "pause, turn, gate, fence, open gate, thaw", err: true},
		"not opened to accept":       {fail: "open fence", sockets: listens(1), want: "pause, turn, gate, fence, open fence, open gate, thaw", err: true},
		"not opened":                 {fail: "open fence", sockets: listens(0), want: plain, err: true},
		"turn fails":                 {fail: "turn", sockets: listens(0), want: "pause, turn, thaw", err: true},
		"closes to another":          {sockets: closes("10.0.0.2:1000"), want: "pause, turn, gate, fence, open fence, open gate, thaw", rule: ClosingRule, err: true},
		"closes to a stranger":       {sockets: closes("10.0.0.3:1000"), want: plain},
		"wait fails":                 {fail: "wait", sockets: listens(0), want: "pause, turn, gate, fence, wait, open fence, open gate, thaw", err: true},
		"dump fails":                 {fail: "dump", sockets: listens(0), want: "pause, turn, gate, fence, wait, dump, open fence, open gate, thaw", err: true},
		"not held":                   {fail: "held", sockets: listens(0), want: "pause, turn, gate, fence, wait, dump, held, open fence, open gate, thaw", err: true},
		"not silenced":               {fail: "silence", sockets: listens(0), decision: Kill, want: "pause, turn, gate, fence, wait, dump, held, silence, open fence, open gate, thaw", err: true},
		"not killed":                 {fail: "kill", sockets: listens(0), decision: Kill, want: "pause, turn, gate, fence, wait, dump, held, silence, kill, open fence, open gate, thaw", err: true},
	} {
		t.Run(name, func(t *testing.T) {
			if test.decision == "" {
				test.decision = Resume
			}
			f := &fake{fail: test.fail, paused: test.frozen, sockets: test.sockets, unacknowledged: 2}
			h := holder{f: f, decision: test.decision}
			if test.fail == "held" {
				h.err = errFake
			}
			r := Request{ID: "c", Frozen: test.frozen, Together: true, Others: []netip.Addr{netip.MustParseAddr("10.0.0.2")}, Hold: h, Alive: func() bool { return true }, Dump: runc.Dump{Images: t.TempDir(), TCPEstablished: true}}
			_, err := Run(t.Context(), f, r)
			if did := strings.Join(f.did, ", "); test.want != "" && did != test.want {
				t.Errorf("did %s, want %s", did, test.want)
			}
			if (err != nil) != test.err || failure.Rule(err) != test.rule || test.rule != "" && (failure.Hint(err) == "" || !errors.Is(err, errdefs.ErrUnavailable)) {
				t.Errorf("error %v, hint %q", err, failure.Hint(err))
			}
			balanced(t, f.did)
		})
	}
}

// balanced fails if a fence is left, or a container stands still.
func balanced(t *testing.T, did []string) {
	t.Helper()
	count := map[string]int{}
	for _, step := range did {
		count[step]++
	}
	for _, of := range []string{"fence", "gate"} {
		if made, opened := count[of], count["open "+of]; opened > made || opened < made-1 || opened < made && did[slices.Index(did, of)+1] != "thaw" && did[slices.Index(did, of)+1] != "open gate" {
			t.Errorf("%d times %s, and %d times opened: %q", made, of, opened, did)
		}
	}
	if count["kill"] == 0 && count["thaw"] < count["pause"] {
		t.Errorf("it stands still: %q", did)
	}
}

// TestTogetherPatience: a holder that does nothing while the others are waited for does not have the container stand still for ever.
func TestTogetherPatience(t *testing.T) {
	watchShortly(t)
	f := &fake{sockets: listens(0)}
	r := Request{ID: "c", Together: true, Alive: func() bool { return true }, Hold: lazy{holder{f: f}}, Dump: runc.Dump{Images: t.TempDir(), Patience: 50 * time.Millisecond}}
	_, err := Run(t.Context(), f, r)
	if did := strings.Join(f.did, ", "); did != "pause, turn, gate, fence, wait, open fence, open gate, thaw" || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("did %s, %v", did, err)
	}
}

// lazy is a holder that never lets its container be dumped.
type lazy struct{ holder }

func (h lazy) Held(ctx context.Context, held Held) error {
	if !held.Cut {
		return h.holder.Held(ctx, held)
	}
	<-ctx.Done()
	return errors.Join(h.f.do("wait"), context.Cause(ctx))
}

// TestTogetherPlain: a plain dump is in step with none.
func TestTogetherPlain(t *testing.T) {
	watchShortly(t)
	f := &fake{}
	_, err := Run(t.Context(), f, Request{ID: "c", Together: true, Alive: func() bool { return true }, Dump: runc.Dump{Images: t.TempDir()}})
	if !errdefs.IsInvalidArgument(err) || slices.Contains(f.did, "dump") {
		t.Errorf("did %q, %v", f.did, err)
	}
}

// TestTogetherDevices has a container with devices saved in step with others, and lets each step fail, and has the context end there. The program is not let go on between the
// saving of its devices and their loading.
func TestTogetherDevices(t *testing.T) {
	watchShortly(t)
	thawTime = time.Microsecond
	const steps = "save record pause yield turn look gate look fence look wait dump held open fence open gate stop thaw load"
	run := func(t *testing.T, m *model) error {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		m.before = func(step string) {
			if m.fail == "cancel "+step {
				cancel()
			}
		}
		_, err := Run(ctx, m, Request{ID: "c", Together: true, Devices: m, Alive: func() bool { return !m.dead }, Hold: modelHolder{m, Resume}, Dump: runc.Dump{Images: t.TempDir()}})
		if m.misused != "" {
			t.Errorf("%s; did %q", m.misused, m.did)
		}
		if !m.dead && (m.frozen || m.saved) {
			t.Errorf("frozen is %v, saved %v; did %q", m.frozen, m.saved, m.did)
		}
		if m.count["fence"] != m.count["open fence"] && m.fail != "fence 1" || m.count["gate"] != m.count["open gate"] && m.fail != "gate 1" {
			t.Errorf("a fence is left; did %q", m.did)
		}
		return err
	}
	m := &model{sockets: listens(0)}
	if err := run(t, m); err != nil || strings.Join(m.did, " ") != steps {
		t.Fatalf("did %q, %v", m.did, err)
	}
	for _, step := range m.did {
		for _, fail := range []string{step + " 1", "cancel " + step} {
			t.Run(fail, func(t *testing.T) {
				m := &model{sockets: listens(0), fail: fail}
				if err := run(t, m); err == nil && slices.Contains([]string{"save", "record", "pause", "yield", "look", "gate", "fence", "wait", "dump"}, step) && fail != "cancel "+step {
					t.Errorf("no error; did %q", m.did)
				}
			})
		}
	}
	m = &model{sockets: listens(1)}
	if err := run(t, m); failure.Rule(err) != ArrivingRule || m.count["thaw"] != 1 || !strings.Contains(err.Error(), "10.0.0.1:80 from 10.0.0.3:1") {
		t.Errorf("did %q, %v", m.did, err)
	}
}

// TestArriving: the error names a few of many connections.
func TestArriving(t *testing.T) {
	err := arriving(listens(5).Waiting, "")
	for _, part := range []string{"5 connections", "10.0.0.3:3", "and 2 more"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%v does not have %q", err, part)
		}
	}
	if strings.Contains(err.Error(), fmt.Sprint(netip.MustParseAddrPort("10.0.0.3:4"))) {
		t.Errorf("%v", err)
	}
}
