package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/runtime/channel"
	"github.com/cryo-project/cryo/runtime/fill"
)

// calm is how long no process may have waited for a page before the rest is filled in: a process that goes on asks for what it needs in
// quick succession, some milliseconds each, and answers when it has that.
const calm = 10 * time.Millisecond

// diskAhead is how many bytes of a snapshot in the local store are read into the page cache while CRIU restores the container, which waits for none of them: the disk
// would have nothing to do, and the container would wait for it later. A disk of 1 GB/s has not more in that time.
const diskAhead = 256 << 20

// firstChild is above the numbers of all tasks.
const firstChild = 1 << 24

// HostMemory is a snapshot's memory, for a container that is restored.
type HostMemory struct {
	From     image.Fetcher // has its blobs
	Snapshot ocispec.Descriptor
	Images   string // CRIU's images, which lack that memory
	// Pulling has the segments that are still being pulled; nil: all are here.
	Pulling *store.PullSource
	// Waiting says what those wait for that do not come; empty: for nothing but the line. nil where Pulling is.
	Waiting func() string
	// Rate bounds how many bytes a second are filled in that no process waits for. 0: nothing does.
	Rate int64
	// Wipe is [image.UnpackOptions.Wipe].
	Wipe bool
}

// Serve fills in the memory of the processes that the shim names over c, which it closes, and returns when nothing is missing in any process any more, or all
// are gone. Whatever else happens it tells the shim, and returns when no process depends on it. ctx ends when what is missing will not come; its cause is told.
func (m *HostMemory) Serve(ctx context.Context, c *channel.Channel) error {
	shim := link{c}
	defer shim.Close()
	f, result, err := m.serve(ctx, shim)
	if err == nil {
		err := shim.Send(message{Result: &result})
		f.Enlarge()
		return err
	}
	sent := shim.Send(message{Failed: failure.Of(err, errdefs.ErrDataLoss, errdefs.ErrAborted)}) // it fails if the shim is dead
	if f != nil {
		f.Outlive()
	} else if sent == nil {
		shim.await()
	}
	return err
}

// serve returns the filler if processes may depend on it.
func (m *HostMemory) serve(ctx context.Context, c link) (_ *fill.Filler, _ FillResult, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	pages, err := m.open(ctx)
	if err != nil {
		return nil, FillResult{}, err
	}
	defer pages.Close()
	var restored atomic.Pointer[time.Time]
	var children atomic.Int64
	from := newSource(pages, m.Images)
	f := fill.NewFiller(from)
	ended := func() {}
	ahead, stop := context.WithCancel(ctx)
	stopAhead := func() { from.prefetch.stop(); stop() }
	switch {
	case m.Pulling != nil:
		if ended, err = from.fetchAhead(f.Arrived); err != nil {
			return nil, FillResult{}, err
		}
	case m.Rate == 0:
		var reading sync.WaitGroup
		reading.Go(func() { pages.ReadAhead(ahead, diskAhead) })
		ended = reading.Wait
	}
	defer func() {
		cancel(nil) // of what is still being read
		ended()
	}()
	if m.Pulling != nil {
		f.Next, f.Urgent = from.next, urgent
		go m.Pulling.Follow(ctx, f.Arrived)
	}
	f.Rate, f.Calm = m.Rate, calm
	f.Hold = func(uffd int) (int, error) {
		id := firstChild + int(children.Add(1))
		err := c.Send(message{Hold: id}, uffd)
		if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) {
			err = nil // the shim is dead: see take
		}
		return id, err
	}
	f.Drop = func(id int) { _ = c.Send(message{Drop: id}) } // the shim is gone, or will be told of the end
	if err := c.Send(message{Ready: true}); err != nil {
		return nil, FillResult{}, err
	}
	go func() {
		if err := take(c, f, stopAhead, &restored); err != nil {
			cancel(err)
		}
	}()
	go m.tell(ctx, c, f)
	if err := f.Run(ctx); err != nil {
		return f, FillResult{}, err
	}
	return f, FillResult{Bytes: f.Filled(), Seconds: time.Since(*restored.Load()).Seconds(), Peak: peak()}, nil
}

// open opens all that will be needed: what happens to the store and to CRIU's images afterwards does no harm.
func (m *HostMemory) open(ctx context.Context) (*image.Pages, error) {
	p, err := image.OpenPages(ctx, m.From, m.Snapshot, m.Images, m.Wipe)
	if err != nil {
		return nil, err
	}
	if p.PageSize() != int64(os.Getpagesize()) {
		p.Close()
		return nil, fmt.Errorf("the snapshot has pages of %d bytes, this host of %d: %w", p.PageSize(), os.Getpagesize(), errdefs.ErrFailedPrecondition)
	}
	return p, nil
}

// take takes tasks from the shim until all run. A shim that dies leaves processes that go on, until containerd ends them: they are
// filled as if it lived. stopAhead is called when they run: a running process asks for what it wants.
func take(c link, f *fill.Filler, stopAhead func(), restored *atomic.Pointer[time.Time]) error {
	for tasks := 0; ; {
		m, fd, err := c.receive()
		switch {
		case err == nil && m.Task != nil && fd >= 0:
			tasks++
			err = f.Add(m.Task.ID, fill.Task{PID: m.Task.PID, UFFD: fd, Host: m.Task.Host})
		case restored.Load() != nil && err != nil:
			return nil
		case err == nil && m.Restored, errors.Is(err, io.EOF) && tasks > 0:
			now := time.Now()
			restored.Store(&now)
			stopAhead()
			f.Restored()
			if err == nil {
				_ = c.Send(message{Taken: true}) // a shim that has died does not wait for it
			}
			err = nil
		case errors.Is(err, io.EOF):
			return errors.New("the shim has ended")
		case err == nil:
			err = errors.New("a message of the shim is not understood")
		}
		if err != nil {
			return err
		}
	}
}

// tellTime is between two messages about how much is there.
const tellTime = time.Second / 2

// tell tells the shim how much memory is there, and what the rest waits for, until ctx ends.
func (m *HostMemory) tell(ctx context.Context, c link, f *fill.Filler) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(tellTime):
		}
		there := MemoryNote{Here: min(f.Filled(), f.Total()), Total: f.Total()} // children that were forked count twice
		if m.Waiting != nil {
			there.Waiting = m.Waiting()
		}
		if err := c.Send(message{There: &there}); err != nil {
			return // the shim is dead
		}
	}
}

// peak is the largest amount of memory this process had, in bytes. Source: getrusage(2).
func peak() int64 {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		return 0
	}
	return r.Maxrss << 10
}
