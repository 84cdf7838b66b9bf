//go:build cgo

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync/atomic"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/runtime/channel"
	"github.com/cryo-project/cryo/runtime/gpu/device"
)

// server is what a keeper has. One goroutine uses it, which carries out one request after the other.
type server struct {
	channel *channel.Channel
	memory  *cudaMemory
	pieces  []held
	precopy precopy

	ring   *device.Ring // nil: it was not told to open
	pinned bool         // the ring
	opened bool         // a device is open

	progress atomic.Int64 // how often something was moved, or the sender has said that it waits
}

// order is a request with what came with it.
type order struct {
	do    device.KeeperRequest
	files []*os.File
}

// hold carries out what comes over the channel until the other end is closed, ctx ends, or it has reported an error that is not of a copy.
// The caller ends the process then, and with it what is under way, by which the driver frees what is held.
func hold(ctx context.Context, c *channel.Channel) error {
	// The shim's environment says two. A copy keeps one until the scheduler notices, and a receiver that waits for free slots waits for that.
	runtime.GOMAXPROCS(max(runtime.NumCPU(), 4*streams))
	orders, ended := make(chan order, 1), make(chan error, 2)
	go func() { ended <- listen(c, orders) }()
	go func() { ended <- carryOutAll(ctx, c, orders) }()
	defer c.Close()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return nil
	}
}

// listen passes requests on until the client hangs up. There is no other before the answer.
func listen(c *channel.Channel, orders chan<- order) error {
	for {
		var raw json.RawMessage
		fds, err := c.Receive(&raw)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		r, err := device.DecodeKeeperRequest(raw, len(fds))
		if err != nil {
			channel.Close(fds)
			return err
		}
		orders <- order{do: r, files: device.FilesOf(fds)}
	}
}

// carryOutAll carries out one request after the other, until one fails. A driver that cannot be opened is the answer to the first.
func carryOutAll(ctx context.Context, c *channel.Channel, orders <-chan order) error {
	d, failed := openMemory()
	s := &server{channel: c, memory: d}
	for o := range orders {
		var a device.KeeperAnswer
		var files []*os.File
		if failed == nil {
			a, files, failed = s.carryOut(ctx, o)
		}
		if a.Done = true; failed != nil {
			a.Error = device.NewErrorReport(failed)
			device.CloseAll(files)
			files = nil
		}
		err := c.Send(a, device.Descriptors(files)...)
		device.CloseAll(files)
		device.CloseAll(o.files) // no process waits for that, and it takes as long as to import what they are
		if failed != nil || err != nil {
			return errors.Join(failed, err)
		}
	}
	return nil
}

// carryOut does what is asked. Files that it gives are for the client.
func (s *server) carryOut(ctx context.Context, o order) (a device.KeeperAnswer, files []*os.File, err error) {
	if (s.ring == nil) != (o.do.Do == device.VerbOpen) {
		return a, nil, fmt.Errorf("%s: open is the first, and only once: %w", o.do.Do, errdefs.ErrFailedPrecondition)
	}
	switch o.do.Do {
	case device.VerbOpen:
		err = s.open(o.do)
	case device.VerbHold:
		err = s.hold(o.do.Pieces, o.files, o.do.Planned)
	case device.VerbMake:
		files, err = s.make(o.do.Pieces)
	case device.VerbCopy:
		if failed := s.copy(o.do.Pieces[0], o.files[0], o.files[1]); failed != nil {
			a.Error = device.NewErrorReport(failed) // which changes nothing of what is held
		}
	case device.VerbLetGo:
		err = s.letGo()
	case device.VerbRoom:
		a.Room, err = s.room(o.do.Pieces, o.do.Spare)
	case device.VerbSend, device.VerbReceive:
		err = s.move(ctx, o.do.Do, o.files[0])
	case device.VerbPlan:
		a.Sums, err = s.plan(o.do.Pieces)
	case device.VerbBegin:
		err = s.begin(ctx, o.files[0])
	case device.VerbPrecopy:
		err = s.precopyPart(*o.do.Part, o.files)
	case device.VerbPrecopied:
		err = s.precopied()
	default:
		err = fmt.Errorf("%q: %w", o.do.Do, errdefs.ErrNotImplemented) // DecodeRequest accepts no other
	}
	return a, files, err
}

// open gets ready what will be needed.
func (s *server) open(r device.KeeperRequest) (err error) {
	if r.Version != device.KeeperVersion {
		return fmt.Errorf("version %d, not %d: %w", r.Version, device.KeeperVersion, errdefs.ErrFailedPrecondition)
	}
	if s.ring, err = device.NewRing(*r.Ring); err != nil {
		return err
	}
	filled := make(chan struct{})
	go func() { // each takes about as long as the other
		defer close(filled)
		s.ring.Fill()
	}()
	for _, uuid := range r.Devices {
		if _, err = s.memory.Device(uuid); err != nil {
			break
		}
	}
	<-filled
	if err != nil {
		return err
	}
	s.opened = len(r.Devices) > 0
	channel.Expect(device.Batch)
	return s.ready()
}
