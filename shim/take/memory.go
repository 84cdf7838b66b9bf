package take

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"time"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/runtime/checkpoint"
	"github.com/cryo-project/cryo/runtime/pageserver"
)

var _ pageserver.Rounds = (*image.Rounds)(nil)

// plainSink takes in a dump without rounds before it.
type plainSink struct{ *image.Intake }

var _ pageserver.Sink = plainSink{}

func (s plainSink) Begin(_ string, file uint32) error { return s.Intake.Begin(file) }

func (s plainSink) Pages(addr, count uint64, _ bool, r io.Reader) error {
	return s.Intake.Pages(addr, count, r)
}

// memory is the way of a container's memory out of CRIU into segments, while it is dumped. It is not used where the shim, runc
// or CRIU's configuration has CRIU write its pages to files.
type memory struct {
	intake *image.Intake
	rounds *rounds // nil: none are wanted
	cancel context.CancelFunc
	begun  atomic.Bool   // CRIU sends
	done   chan struct{} // closed when CRIU sends no more
	err    error         // why it does not, to be read when done is closed
}

// takeIn waits for CRIU in the background. images is where CRIU's images go, work a directory of ours.
func (t *taking) takeIn(ctx context.Context, client *checkpoint.Client, images, work string) (*memory, error) {
	ctx, cancel := context.WithCancel(ctx)
	intake, err := image.NewIntake(ctx, t.sender.watch(t.store), work, int64(os.Getpagesize()), t.packOptions())
	if err != nil {
		cancel()
		return nil, err
	}
	m := &memory{intake: intake, cancel: cancel, done: make(chan struct{})}
	if t.PreDump > 0 {
		if m.rounds, err = t.takeInRounds(ctx, client, work); err != nil {
			cancel()
			intake.Close()
			return nil, err
		}
	}
	go func() {
		defer close(m.done)
		m.err = m.serve(ctx, client, images)
	}()
	return m, nil
}

func (m *memory) serve(ctx context.Context, client *checkpoint.Client, images string) error {
	conn, err := client.Pages(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if m.rounds == nil {
		return pageserver.Serve(conn, images, int64(os.Getpagesize()), plainSink{m.intake}, func() { m.begun.Store(true) })
	}
	return pageserver.Serve(conn, images, int64(os.Getpagesize()), m.rounds.kept, func() {
		m.rounds.last()
		m.begun.Store(true)
	})
}

// arrived gives what has been taken in of a container that is dumped; nil if its pages are in files.
func (m *memory) arrived() (*image.Intake, error) {
	// CRIU has waited for answers: had it sent anything, it would have been seen.
	if !m.begun.Load() {
		m.cancel()
		return nil, nil
	}
	<-m.done
	return m.intake, m.err
}

// complete puts together what has come in rounds and in the dump into images.
func (m *memory) complete(ctx context.Context, images string) error {
	if m.rounds == nil || !m.begun.Load() {
		return nil
	}
	return m.rounds.kept.Complete(ctx, images, m.intake)
}

// explain gives the reason why there was no dump: err, unless CRIU failed because we did.
func (m *memory) explain(ctx context.Context, err error) error {
	select {
	case <-m.done:
	case <-time.After(time.Second):
		return err
	}
	own := m.err
	if !m.begun.Load() {
		own = m.rounds.failure()
	}
	switch {
	case own == nil, ctx.Err() != nil, isLost(err), hungUp(own):
		return err
	}
	return own
}

// hungUp tells whether CRIU has hung up, which knows why.
func hungUp(err error) bool {
	var cut *net.OpError
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &cut)
}

// close ends what is under way and drops what no snapshot was made of.
func (m *memory) close() {
	m.cancel()
	<-m.done
	m.rounds.close()
	m.intake.Close()
}
