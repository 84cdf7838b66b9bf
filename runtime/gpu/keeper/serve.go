package keeper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/runtime/channel"
	"github.com/cryo-project/cryo/runtime/gpu/ring"
)

// server is what a keeper has. One goroutine uses it, which carries out one request after the other.
type server struct {
	channel *channel.Channel
	driver  Driver
	pieces  []held

	ring   *ring.Memory // nil: it was not told to open
	pinned bool         // the ring
	opened bool         // a device is open

	moved atomic.Int64 // bytes, by the request that is carried out
	waits atomic.Int64 // how often who sends has said that it waits
}

// order is a request with what came with it.
type order struct {
	do    request
	files []*os.File
}

// errHungUp is the reason for the end of a request whose client has gone.
var errHungUp = fmt.Errorf("the shim has hung up: %w", errdefs.ErrAborted)

// lastTime bounds a request that is under way when the client has gone. The driver may hang.
var lastTime = 10 * time.Second

// Serve is the keeper's side: it carries out what comes over the channel until the other end is closed, ctx ends, or it has told of an error that is not of a copy. The caller ends the
// process then, by which the driver frees what is held.
func Serve(ctx context.Context, c *channel.Channel, open func() (Driver, error)) error {
	outer := ctx
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	orders := make(chan order)
	heard := make(chan struct{})
	go func() {
		defer close(heard)
		end(listen(ctx, c, orders))
	}()
	served := make(chan error, 1)
	go func() { served <- serve(ctx, c, open, orders) }()
	var err error
	select {
	case err = <-served:
	case <-ctx.Done():
		select {
		case err = <-served:
		case <-time.After(lastTime):
			err = &HangError{Do: "end", After: lastTime}
		}
		if cause := context.Cause(ctx); outer.Err() == nil && !errors.Is(cause, errHungUp) {
			err = errors.Join(cause, err)
		}
	}
	c.Close()
	<-heard
	return err
}

// listen passes requests on, one at a time: there is no other before the answer. It gives the reason for its end.
func listen(ctx context.Context, c *channel.Channel, orders chan<- order) error {
	for {
		var raw json.RawMessage
		fds, err := c.Receive(&raw)
		if errors.Is(err, io.EOF) {
			return errHungUp
		}
		if err != nil {
			return err
		}
		r, err := decodeRequest(raw, len(fds))
		if err != nil {
			channel.Close(fds)
			return err
		}
		o := order{do: r, files: filesOf(fds)}
		select {
		case orders <- o:
		case <-ctx.Done():
			closeAll(o.files)
			return context.Cause(ctx)
		}
	}
}

// serve carries out one request after the other, until one fails. A driver that cannot be opened is the answer to the first.
func serve(ctx context.Context, c *channel.Channel, open func() (Driver, error), orders <-chan order) error {
	d, failed := open()
	s := &server{channel: c, driver: d}
	for {
		var o order
		select {
		case o = <-orders:
		case <-ctx.Done():
			return nil
		}
		var a answer
		var files []*os.File
		if failed == nil {
			a, files, failed = s.carryOut(ctx, o)
		}
		if a.Done = true; failed != nil {
			a.Error = newReport(failed)
			closeAll(files)
			files = nil
		}
		err := c.Send(a, descriptors(files)...)
		closeAll(files)
		closeAll(o.files) // nobody waits for that, and it takes as long as to import what they are
		if failed != nil || err != nil {
			return errors.Join(failed, err)
		}
	}
}

// carryOut does what is asked. Files that it gives are for the client.
func (s *server) carryOut(ctx context.Context, o order) (a answer, files []*os.File, err error) {
	if (s.ring == nil) != (o.do.Do == verbOpen) {
		return a, nil, fmt.Errorf("%s: open is the first, and only once: %w", o.do.Do, errdefs.ErrFailedPrecondition)
	}
	switch o.do.Do {
	case verbOpen:
		err = s.open(o.do)
	case verbHold:
		err = s.hold(o.do.Pieces, o.files)
	case verbMake:
		files, err = s.make(o.do.Pieces)
	case verbCopy:
		if failed := s.copy(o.do.Pieces[0], o.files[0], o.files[1]); failed != nil {
			a.Error = newReport(failed) // which changes nothing of what is held
		}
	case verbLetGo:
		err = s.letGo()
	case verbRoom:
		a.Room, err = s.room(o.do.Pieces, o.do.Spare)
	case verbSend, verbReceive:
		err = s.move(ctx, o.do.Do, o.files[0])
	default:
		err = fmt.Errorf("%q: %w", o.do.Do, errdefs.ErrNotImplemented) // decodeRequest lets none through
	}
	return a, files, err
}

// open gets ready what will be needed.
func (s *server) open(r request) (err error) {
	if r.Version != Version {
		return fmt.Errorf("version %d, not %d: %w", r.Version, Version, errdefs.ErrFailedPrecondition)
	}
	if s.ring, err = ring.New(*r.Ring); err != nil {
		return err
	}
	filled := make(chan struct{})
	go func() { // each takes about as long as the other
		defer close(filled)
		s.ring.Fill()
	}()
	for _, uuid := range r.Devices {
		if _, err = s.driver.Device(uuid); err != nil {
			break
		}
	}
	<-filled
	if err != nil {
		return err
	}
	s.opened = len(r.Devices) > 0
	channel.Expect(batch)
	return s.ready()
}
