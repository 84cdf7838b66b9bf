package main

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"time"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/runtime/checkpoint"
	"github.com/cryo-project/cryo/runtime/pageserver"
)

var _ pageserver.Sink = (*image.Intake)(nil)

// memory is the way of a container's memory out of CRIU into segments, while it is dumped. It is not used where the shim, runc
// or CRIU's configuration has CRIU write its pages to files.
type memory struct {
	intake *image.Intake
	cancel context.CancelFunc
	begun  atomic.Bool   // CRIU sends
	done   chan struct{} // closed when CRIU sends no more
	err    error         // why it does not, to be read when done is closed
}

// takeIn waits for CRIU in the background. images is where CRIU's images go, work a directory of ours.
func (a *app) takeIn(ctx context.Context, s *store.Store, client *checkpoint.Client, images, work string, f checkpointFlags) (*memory, error) {
	ctx, cancel := context.WithCancel(ctx)
	intake, err := image.NewIntake(ctx, f.sender.watch(s), work, int64(os.Getpagesize()), f.packOptions(a))
	if err != nil {
		cancel()
		return nil, err
	}
	m := &memory{intake: intake, cancel: cancel, done: make(chan struct{})}
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
	return pageserver.Serve(conn, images, int64(os.Getpagesize()), m.intake, func() { m.begun.Store(true) })
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

// explain gives the reason why there was no dump: err, unless CRIU failed because we did.
func (m *memory) explain(ctx context.Context, err error) error {
	select {
	case <-m.done:
	case <-time.After(time.Second):
		return err
	}
	var lost *lostError
	var cut *net.OpError
	switch {
	case m.err == nil, !m.begun.Load(), ctx.Err() != nil, errors.As(err, &lost):
		return err
	case errors.Is(m.err, io.EOF), errors.Is(m.err, io.ErrUnexpectedEOF), errors.As(m.err, &cut):
		return err // CRIU has hung up, and knows why
	}
	return m.err
}

// close ends what is under way and drops what no snapshot was made of.
func (m *memory) close() {
	m.cancel()
	<-m.done
	m.intake.Close()
}
