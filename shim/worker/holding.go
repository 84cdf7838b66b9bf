package worker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/record"
	"github.com/cryo-project/cryo/runtime/channel"
	"github.com/cryo-project/cryo/runtime/checkpoint"
)

// Why a checkpoint ends in which the shim has no part any more.
var (
	errUnwanted = fmt.Errorf("the client that has asked for the checkpoint does not wait for it any more: %w", context.Canceled)
	errNoShim   = failure.New(errdefs.ErrUnavailable, "", "the container's shim has died")
)

// ServeCheckpoint takes the checkpoint process's request, has it done, and answers. The context that it passes on ends when no client waits for the answer.
func ServeCheckpoint(descriptor int, do func(context.Context, Request, *Shim) (*Taken, []string, error)) error {
	v, r, err := Serve(descriptor)
	if err != nil {
		return err
	}
	defer v.Close()
	if r.Checkpoint == nil {
		return fmt.Errorf("a checkpoint process was asked for a restore: %w", errdefs.ErrInvalidArgument)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	var m Message
	if m.Taken, m.Warnings, err = do(ctx, r, newShim(v, cancel, r.Checkpoint.Order != nil)); err != nil {
		m.Failed = failure.Of(err)
	}
	v.Tell(m)
	return err
}

// Shim is the container's shim as the checkpoint process sees it. It dumps the container and holds it, once.
type Shim struct {
	v        *Conversation
	streams  map[stream]chan *net.UnixConn
	planned  *record.GPU // what comes over the stream precopy; to be read when that has come
	held     chan checkpoint.Held
	dumped   chan checkpoint.Dumped
	released chan checkpoint.Released
	ended    chan struct{} // closed when the checkpoint has ended
	err      error         // why it has failed; to be read when ended is closed
	silent   bool          // the shim has died without a word of that; to be read when ended is closed
}

// newShim begins to hear what the shim says. callOff is called when no client waits any more; see [Shim.listen].
func newShim(v *Conversation, callOff func(error), ordering bool) *Shim {
	s := &Shim{v: v, held: make(chan checkpoint.Held, 1), dumped: make(chan checkpoint.Dumped, 1), released: make(chan checkpoint.Released, 1), ended: make(chan struct{}), streams: map[stream]chan *net.UnixConn{}}
	for _, of := range []stream{pagesStream, precopyStream, devicesStream} {
		s.streams[of] = make(chan *net.UnixConn, 1)
	}
	v.Hear(func() {})
	go s.listen(callOff, ordering)
	return s
}

// listen hears what the shim says, until it has died, and takes the connections that it makes. A command that is ordering waits for the snapshot whatever becomes of the shim.
func (s *Shim) listen(callOff func(error), ordering bool) {
	for m := range s.v.heard {
		switch {
		case m.Stream != "":
			if err := s.take(m); err != nil {
				s.v.Tell(Message{Undo: true})
			}
		case m.Held != nil && len(s.held) == 0:
			s.held <- *m.Held
		case m.Dumped != nil && len(s.dumped) == 0:
			s.dumped <- *m.Dumped
		case m.Released != nil && len(s.released) == 0:
			s.released <- *m.Released
		case m.Ended && !s.hasEnded():
			if m.Failed != nil {
				s.err = m.Failed
			}
			close(s.ended)
		case m.CallOff:
			callOff(errUnwanted)
		}
	}
	if !ordering {
		callOff(errNoShim)
	}
	if !s.hasEnded() {
		s.err, s.silent = errNoShim, true
		close(s.ended)
	}
}

// reason returns why the checkpoint has ended, in which another step was to come.
func (s *Shim) reason() error {
	if s.err != nil {
		return s.err
	}
	return fmt.Errorf("the shim has ended the checkpoint: %w", errdefs.ErrInternal)
}

func (s *Shim) hasEnded() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

// take takes a connection that the shim has made.
func (s *Shim) take(m Message) error {
	streams := s.streams[m.Stream]
	if streams == nil || len(m.files) != 1 || len(streams) == cap(streams) {
		channel.Close(m.files)
		return fmt.Errorf("unexpected connection from the shim for %.20q: %w", m.Stream, errdefs.ErrInternal)
	}
	f := os.NewFile(uintptr(m.files[0]), string(m.Stream))
	defer f.Close()
	conn, err := net.FileConn(f)
	own, ok := conn.(*net.UnixConn)
	if err == nil && !ok {
		err = errors.Join(errdefs.ErrInternal, conn.Close())
	}
	if err != nil {
		return fmt.Errorf("take a connection from the shim: %w", err)
	}
	if m.Planned != nil {
		s.planned = m.Planned
	}
	streams <- own
	return nil
}

// Hold has the container dumped and held, and waits until it is. The container stands still from before then until [Shim.Decide]. The error is the shim's, or that of ctx; see [Shim.Undo].
//
// With held, the container is saved in step with others ([Hold.Together]): held is called when the container stands still, and again when its connections are cut. The container goes on to the next step, and
// is dumped, when held has returned without an error. With an error, Hold has it undone, and returns that error. The context of held ends when the shim has ended the checkpoint.
func (s *Shim) Hold(ctx context.Context, h Hold, held func(context.Context, checkpoint.Held) error) (checkpoint.Dumped, error) {
	h.Together = held != nil
	s.v.Tell(Message{Hold: &h})
	if held != nil {
		if err := s.inStep(ctx, held); err != nil {
			return checkpoint.Dumped{}, err
		}
	}
	select {
	case d := <-s.dumped:
		return d, nil
	case <-s.ended:
		return checkpoint.Dumped{}, s.reason()
	case <-ctx.Done():
		return checkpoint.Dumped{}, context.Cause(ctx)
	}
}

// TogetherRule is the rule of the error of a shim that does not know how to save a container in step with others.
const TogetherRule = "group-shim"

// inStep calls held when the container stands still, and when its connections are cut, and lets the shim proceed each time.
func (s *Shim) inStep(ctx context.Context, held func(context.Context, checkpoint.Held) error) error {
	for {
		if h, err := s.step(ctx, held); err != nil || h.Cut {
			return err
		}
	}
}

// step is one step of inStep.
func (s *Shim) step(ctx context.Context, held func(context.Context, checkpoint.Held) error) (h checkpoint.Held, _ error) {
	select {
	case h = <-s.held:
	case <-s.dumped:
		s.Undo()
		return h, failure.New(errdefs.ErrFailedPrecondition, "start the container anew, or restore it from a snapshot: it then has the shim of this release",
			"%s: the container's shim is of an earlier build, and cannot save it in step with others", TogetherRule).By(TogetherRule)
	case <-s.ended:
		return h, s.reason()
	case <-ctx.Done():
		return h, context.Cause(ctx)
	}
	waiting, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-s.ended:
			cancel(s.reason())
		case <-waiting.Done():
		}
	}()
	err := held(waiting, h)
	switch {
	case s.hasEnded():
		return h, s.reason()
	case err != nil:
		s.Undo()
		return h, err
	}
	s.v.Tell(Message{Proceed: true})
	return h, nil
}

// Pages waits for the connection over which CRIU sends pages; there may never be one. It is called beside Hold.
func (s *Shim) Pages(ctx context.Context) (*net.UnixConn, error) { return s.stream(ctx, pagesStream) }

// Devices waits for the connection over which device memory comes; there may never be one. It is called beside Hold. What
// comes is described by the record that is beside the images then.
func (s *Shim) Devices(ctx context.Context) (*net.UnixConn, error) {
	return s.stream(ctx, devicesStream)
}

// Precopy is Devices of what is copied while the container runs, and returns what describes it. It comes before Devices, or never.
func (s *Shim) Precopy(ctx context.Context) (*net.UnixConn, *record.GPU, error) {
	conn, err := s.stream(ctx, precopyStream)
	if err != nil {
		return nil, nil, err
	}
	if s.planned == nil {
		return nil, nil, errors.Join(fmt.Errorf("take in device memory ahead: the shim has not said which: %w", errdefs.ErrInternal), conn.Close())
	}
	return conn, s.planned, nil
}

func (s *Shim) stream(ctx context.Context, of stream) (*net.UnixConn, error) {
	select {
	case conn := <-s.streams[of]:
		return conn, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for %s: %w", of, context.Cause(ctx))
	}
}

// Decide has the container run on, or ends it, and waits until that is done.
func (s *Shim) Decide(ctx context.Context, d checkpoint.Decision) (checkpoint.Released, error) {
	s.v.Tell(Message{Decision: d})
	select {
	case r := <-s.released:
		return r, nil
	case <-s.ended:
		if len(s.released) > 0 {
			return <-s.released, nil
		}
		return checkpoint.Released{}, s.reason()
	case <-ctx.Done():
		return checkpoint.Released{}, fmt.Errorf("%s the container: %w", d, context.Cause(ctx))
	}
}

// waitsTime is the interval at which a waiting checkpoint process sends Waits.
const waitsTime = 5 * time.Second

// Waiting has the shim know that the process waits for other members of the container's group, until the function is called that it returns.
func (s *Shim) Waiting() (over func()) {
	ended := make(chan struct{})
	go func() {
		tick := time.NewTicker(waitsTime)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				s.v.Tell(Message{Waits: true})
			case <-ended:
				return
			}
		}
	}()
	return sync.OnceFunc(func() { close(ended) })
}

// Undo has the container as it was. [Shim.Await] waits until it is.
func (s *Shim) Undo() { s.v.Tell(Message{Undo: true}) }

// Ended is closed when the checkpoint has ended: the shim has observed for a moment the container that has gone on, and device memory has come or is given up.
func (s *Shim) Ended() <-chan struct{} { return s.ended }

// Await waits for the end of the checkpoint, for as long as patience, and returns the shim's error. An end that does not come is none.
func (s *Shim) Await(patience time.Duration) error {
	select {
	case <-s.ended:
		return s.err
	case <-time.After(patience):
		return nil
	}
}

// Silent reports whether the shim has died without a word about the checkpoint, which has ended.
func (s *Shim) Silent() bool { return s.hasEnded() && s.silent }
