package gpu

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/cryo-project/cryo/image/spec"
	"github.com/cryo-project/cryo/runtime/gpu/driver"
	"github.com/cryo-project/cryo/runtime/gpu/library"
)

// preloaded is the library in a process of a world's.
type preloaded struct {
	state  library.State
	unable string
	memory []string // of each piece; "" while it is elsewhere
	// foreign is how many pieces are another's memory still, and stuck how many of these stay so.
	foreign, stuck int
	files          []*os.File // that it was attached by
	made           []*os.File // by itself, to be filled
}

// give puts the library into a process, with some pieces.
func (w *world) give(pid, pieces int) {
	if w.libraries == nil {
		w.libraries = map[int]*preloaded{}
	}
	l := &preloaded{}
	for i := range pieces {
		l.memory = append(l.memory, fmt.Sprintf("%d/%d", pid, i))
	}
	w.libraries[pid] = l
}

// keeperEngine is an engine that hands over.
func (w *world) keeperEngine() *Engine {
	e := w.engine()
	e.Library = &spec.GPULibrary{Digest: "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"}
	e.Handover = w.handover()
	return e
}

func (w *world) handover() *Handover {
	return &Handover{
		Start: func(context.Context) (Keeper, error) {
			h, err := w.keeper()
			if err != nil {
				return nil, err
			}
			return h, nil
		},
		Peer: func() (*os.File, error) {
			r, wr, err := os.Pipe()
			if err != nil {
				return nil, err
			}
			w.came = make(chan string, 1)
			go func() {
				b, _ := io.ReadAll(r)
				r.Close()
				w.came <- string(b)
			}()
			return wr, nil
		},
	}
}

func (w *world) keeper() (*fakeKeeper, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.noKeeper {
		return nil, &driver.NoHelperError{Path: "there", Err: os.ErrNotExist}
	}
	w.keepers++
	if w.launched != nil {
		w.launched()
	}
	w.did = append(w.did, "launch")
	return &fakeKeeper{w: w, gone: make(chan struct{})}, nil
}

// whole reports processes that do not have their memory, or wait at their gate.
func (w *world) whole() {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for pid, l := range w.libraries {
		if w.states[pid] == driver.None {
			continue
		}
		if l.state != library.Whole {
			w.t.Errorf("process %d is left %s; did %q", pid, l.state, w.did)
		}
		for i, m := range l.memory {
			if m != fmt.Sprintf("%d/%d", pid, i) {
				w.t.Errorf("process %d has %q as piece %d; did %q", pid, m, i, w.did)
			}
		}
	}
	if w.keepers != 0 {
		w.t.Errorf("%d keepers are left; did %q", w.keepers, w.did)
	}
	for _, f := range w.files {
		if _, err := f.Stat(); !errors.Is(err, os.ErrClosed) {
			w.t.Errorf("%s is left open; did %q", f.Name(), w.did)
		}
	}
}

// file is the descriptor of a piece.
func (w *world) file(content string) *os.File {
	f, err := os.CreateTemp(w.root, "piece-*")
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := f.WriteString(content); err != nil {
		w.t.Fatal(err)
	}
	w.files = append(w.files, f)
	return f
}

// again is a descriptor of one's own of the same memory.
func (w *world) again(f *os.File) *os.File {
	own, err := os.OpenFile(f.Name(), os.O_RDWR, 0)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { own.Close() })
	return own
}

func read(f *os.File) string {
	b := make([]byte, 100)
	n, _ := f.ReadAt(b, 0)
	return string(b[:n])
}

// ordered tells how a step is to fail, if it is.
func (w *world) ordered(step string) string {
	w.did = append(w.did, step)
	if step != w.fail {
		return ""
	}
	how := w.how
	switch {
	case how == "thrice":
		how, w.how = "1", "twice"
	case how == "twice":
		how, w.how = "1", "1"
	case !w.always:
		w.fail = ""
	}
	return how
}

// fakeOwner is a conversation with a library.
type fakeOwner struct {
	w   *world
	pid int
	cut bool
}

func (o *fakeOwner) gone(why string) error {
	return &library.GoneError{PID: o.pid, Step: "ask", Err: errors.New(why)}
}

func (o *fakeOwner) do(call string) error {
	o.w.mu.Lock()
	defer o.w.mu.Unlock()
	how := o.w.ordered(fmt.Sprintf("%s %d", call, o.pid))
	if o.w.states[o.pid] == driver.None || o.cut {
		return o.gone("it has ended")
	}
	if s := o.w.states[o.pid]; s != driver.Running {
		o.w.t.Errorf("%s of process %d in state %s", call, o.pid, s)
	}
	switch code, err := strconv.Atoi(how); {
	case how == "":
		return nil
	case err == nil:
		return &driver.CallError{Call: call, Code: code}
	case how == "busy", how == "capturing":
		return &library.BusyError{PID: o.pid, Capturing: how == "capturing"}
	case how == "unable":
		return &library.UnableError{PID: o.pid, Reason: "as ordered"}
	case how == "end":
		o.w.end(o.pid)
		o.w.states[o.pid] = driver.None
		return o.gone("it has ended")
	case how == "cancel":
		o.w.cancel()
		return nil
	}
	o.cut = true
	return o.gone("as ordered")
}

func (o *fakeOwner) library() *preloaded { return o.w.libraries[o.pid] }

func (o *fakeOwner) Hello() (library.Hello, error) {
	err := o.do("hello")
	l := o.library()
	return library.Hello{State: l.state, Pieces: len(l.memory), Version: "1", Unable: l.unable, Foreign: l.foreign, Mistaken: slices.Contains(o.w.mistaken, o.pid)}, err
}

func (o *fakeOwner) Close(ctx context.Context, _ time.Duration) error {
	if err := o.do("close"); err != nil {
		return err
	}
	o.library().state = library.Closed
	return ctx.Err()
}

func (o *fakeOwner) Table() (pieces []spec.GPUPiece, err error) {
	if err := o.do("table"); err != nil {
		return nil, err
	}
	for i := range o.library().memory {
		pieces = append(pieces, spec.GPUPiece{Address: uint64(1+i) << 28, Size: 2 << 20, Device: uuidA})
	}
	return pieces, nil
}

func (o *fakeOwner) Give() (files []*os.File, err error) {
	if err := o.do("give"); err != nil {
		return nil, err
	}
	o.w.mu.Lock()
	defer o.w.mu.Unlock()
	for _, m := range o.library().memory {
		files = append(files, o.w.file(m))
	}
	return files, nil
}

func (o *fakeOwner) Release() error {
	l := o.library()
	if l.state != library.Closed {
		o.w.t.Errorf("release of process %d while %s", o.pid, l.state)
	}
	err := o.do("release")
	var call *driver.CallError
	if errors.As(err, &call) {
		return err
	}
	l.state = library.Given
	for i := range l.memory {
		l.memory[i] = ""
	}
	return err
}

func (o *fakeOwner) Attach(_ context.Context, pieces []spec.GPUPiece, files []*os.File) error {
	if err := o.do("attach"); err != nil {
		return err
	}
	if slices.Contains(o.w.mistaken, o.pid) {
		return &driver.CallError{Call: "attach", Code: invalidDevice}
	}
	l := o.library()
	for i := range pieces {
		l.memory[i] = read(files[i])
	}
	l.state, l.files = library.Closed, files
	if o.w.tight {
		l.foreign = len(pieces)
	}
	return nil
}

func (o *fakeOwner) Own(context.Context) (int, error) {
	err := o.do("own")
	if err == nil && o.library().state != library.Closed {
		o.w.t.Error("memory is made a process's own while its gate is open")
	}
	if err == nil && !o.w.crowded(o.library()) {
		o.library().foreign = o.library().stuck
	}
	return o.library().foreign, err
}

func (o *fakeOwner) Make(_ context.Context, pieces []spec.GPUPiece, n int) (*os.File, error) {
	l := o.library()
	if n == 0 {
		l.made = nil
	}
	if l.state != library.Given || n != len(l.made) || n >= len(pieces) {
		o.w.t.Errorf("process %d makes piece %d of %d, after %d, while %s", o.pid, n, len(pieces), len(l.made), l.state)
	}
	if err := o.do("make own"); err != nil {
		l.made = nil
		return nil, err
	}
	o.w.mu.Lock()
	defer o.w.mu.Unlock()
	f := o.w.file("")
	l.made = append(l.made, o.w.again(f))
	return f, nil
}

func (o *fakeOwner) Filled() error {
	if err := o.do("filled"); err != nil {
		return err
	}
	l := o.library()
	if len(l.made) != len(l.memory) {
		o.w.t.Errorf("process %d has %d pieces of %d", o.pid, len(l.made), len(l.memory))
	}
	for i, f := range l.made {
		l.memory[i] = read(f)
	}
	l.state, l.foreign = library.Closed, 0
	return nil
}

func (o *fakeOwner) Leave(context.Context) { _ = o.HangUp() }

// crowded tells whether somebody still has what a process would have to have twice to make it its own.
func (w *world) crowded(l *preloaded) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	open := slices.ContainsFunc(l.files, func(f *os.File) bool {
		_, err := f.Stat()
		return err == nil
	})
	return w.tight && (open || w.keepers > 0)
}

func (o *fakeOwner) Open() error {
	if err := o.do("open"); err != nil {
		return err
	}
	o.library().state = library.Whole
	return nil
}

func (o *fakeOwner) HangUp() error {
	if l := o.library(); l.state == library.Closed {
		l.state = library.Whole
	}
	o.cut = true
	o.library().made = nil
	return nil
}

// fakeKeeper is one keeper process.
type fakeKeeper struct {
	w       *world
	held    []string
	into    []*os.File // of what is held
	devices []string
	dead    bool
	closed  bool
	gone    chan struct{}
}

func (h *fakeKeeper) do(call string) error {
	h.w.mu.Lock()
	how := h.w.ordered(call)
	dead := h.dead
	h.w.mu.Unlock()
	switch {
	case dead || how == "die":
		_ = h.Kill()
		return errDied
	case how == "hang":
		<-h.gone
		return errDied
	case how == "cancel":
		h.w.cancel()
	case how == "gone":
		return errors.New("the other process has hung up")
	case how != "":
		return &driver.CallError{Call: call, Code: 1}
	}
	return nil
}

func (h *fakeKeeper) Ready(context.Context) error {
	defer func() { h.w.ready = time.Now() }()
	return h.do("ready")
}

func (h *fakeKeeper) Hold(_ context.Context, _ []spec.GPUPiece, files []*os.File) error {
	if err := h.do("hold"); err != nil {
		return err
	}
	for _, f := range files {
		h.held, h.into = append(h.held, read(f)), append(h.into, h.w.again(f))
	}
	return nil
}

func (h *fakeKeeper) Room(_ context.Context, others []spec.GPUPiece, _ int64) (bool, error) {
	if len(others) > 0 {
		return !h.w.crammed, h.do("room for one")
	}
	return h.w.room, h.do("room")
}

func (h *fakeKeeper) Copy(_ context.Context, _ spec.GPUPiece, from, to *os.File) error {
	if err := h.do("copy"); err != nil {
		return err
	}
	_, err := to.WriteAt([]byte(read(from)), 0)
	return err
}

func (h *fakeKeeper) Send(_ context.Context, peer *os.File) error {
	defer peer.Close()
	if err := h.do("send"); err != nil {
		return err
	}
	for _, m := range h.held {
		if _, err := fmt.Fprintln(peer, m); err != nil {
			return err
		}
	}
	return nil
}

func (h *fakeKeeper) Make(_ context.Context, pieces []spec.GPUPiece) (files []*os.File, err error) {
	if err := h.do("make"); err != nil {
		return nil, err
	}
	for _, p := range pieces {
		if !slices.Contains(h.devices, p.Device) {
			h.w.t.Errorf("a keeper makes memory on %s, and was told of %q", p.Device, h.devices)
		}
	}
	for range pieces {
		files = append(files, h.w.file(""))
	}
	for _, f := range files {
		h.into = append(h.into, h.w.again(f))
	}
	return slices.Clone(files), nil
}

func (h *fakeKeeper) Receive(_ context.Context, peer *os.File) error {
	defer peer.Close()
	if err := h.do("receive"); err != nil {
		return err
	}
	for _, f := range h.into {
		var m string
		if _, err := fmt.Fscanln(peer, &m); err != nil {
			return err
		}
		if _, err := f.WriteString(m); err != nil {
			return err
		}
	}
	return nil
}

func (h *fakeKeeper) LetGo(context.Context) error { return h.do("let go") }

func (h *fakeKeeper) Open(devices []string) error {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	if h.devices != nil {
		h.w.t.Errorf("a keeper is told of %q and then of %q", h.devices, devices)
	}
	h.devices = devices
	return nil
}

func (h *fakeKeeper) Kill() error {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	if !h.dead {
		h.dead = true
		close(h.gone)
	}
	return nil
}

func (h *fakeKeeper) Close() error {
	h.w.mu.Lock()
	h.w.did = append(h.w.did, "end")
	h.w.mu.Unlock()
	if h.w.ending != nil {
		<-h.w.ending
	}
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	if !h.closed {
		h.closed = true
		h.w.keepers--
	}
	return nil
}
