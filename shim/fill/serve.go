package fill

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/arrival"
	"github.com/cryo-project/cryo/image/spec/failure"
	"github.com/cryo-project/cryo/runtime/lazypages"
	"github.com/cryo-project/cryo/shim/notes"
	"github.com/cryo-project/cryo/shim/order"
)

// channelDescriptor is the daemon's end of the channel.
const channelDescriptor = 3

// calm is how long nobody may have waited for a page before the rest is filled in: a process that goes on asks for what it needs in
// quick succession, some milliseconds each, and answers when it has that.
const calm = 10 * time.Millisecond

// firstChild is above the numbers of all tasks.
const firstChild = 1 << 24

// Serve is the daemon: it does what the shim says on descriptor 3, and ends when nothing is missing in any process any more or all
// are gone. Whatever else happens it tells the shim, if there is one still.
func Serve() error {
	channel, err := newLine(channelDescriptor)
	if err != nil {
		return err
	}
	_ = os.WriteFile("/proc/self/comm", []byte("cryo-fill"), 0) // for ps; it was exe
	defer channel.Close()
	f, result, err := serve(channel)
	if err == nil {
		err := channel.send(message{Result: &result}, -1)
		f.Enlarge()
		return err
	}
	sent := channel.send(message{Failed: failure.Of(err, errdefs.ErrDataLoss, errdefs.ErrAborted)}, -1) // it fails if the shim is dead
	if f != nil {
		f.Outlive()
	} else if sent == nil {
		channel.await()
	}
	return errors.Join(err, sent)
}

// serve gives the filler where processes may depend on it.
func serve(c line) (_ *lazypages.Filler, _ Result, err error) {
	m, _, err := c.receive()
	if err != nil {
		return nil, Result{}, err
	}
	if m.Order == nil {
		return nil, Result{}, errors.New("begin: there is no order")
	}
	defer func() { err = m.Order.Damaged(err) }()
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	pages, coming, err := open(ctx, *m.Order)
	if err != nil {
		return nil, Result{}, err
	}
	defer pages.Close()
	defer func() { coming.End(err) }()
	var restored atomic.Pointer[time.Time]
	var children atomic.Int64
	from := newSource(pages, m.Order.Images)
	f := lazypages.NewFiller(from)
	ended := func() {}
	if coming != nil {
		if ended, err = from.fetchAhead(f.Arrived); err != nil {
			return nil, Result{}, err
		}
	}
	defer func() {
		cancel(nil) // of what is still being read
		ended()
	}()
	if coming != nil {
		f.Next, f.Urgent = from.next, urgent
		go coming.Follow(ctx, f.Arrived)
		go func() {
			if err := coming.Await(ctx); err != nil {
				cancel(err)
			}
		}()
	}
	f.Rate, f.Calm = m.Order.Rate, calm
	f.Hold = func(uffd int) (int, error) {
		id := firstChild + int(children.Add(1))
		err := c.send(message{Hold: id}, uffd)
		if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) {
			err = nil // the shim is dead: see take
		}
		return id, err
	}
	f.Drop = func(id int) { _ = c.send(message{Drop: id}, -1) } // the shim is gone, or will be told of the end
	if err := c.send(message{Ready: true}, -1); err != nil {
		return nil, Result{}, err
	}
	go func() {
		if err := take(c, f, from, &restored); err != nil {
			cancel(err)
		}
	}()
	go tell(ctx, c, f)
	if err := f.Run(ctx); err != nil {
		return f, Result{}, err
	}
	return f, Result{Bytes: f.Filled(), Seconds: time.Since(*restored.Load()).Seconds(), Peak: peak()}, nil
}

// open opens all that will be needed: what happens to the store and to the restore process's directories afterwards does no harm. Where
// segments are missing still, coming is not nil.
func open(ctx context.Context, o order.Order) (_ *image.Pages, coming *arrival.Coming, err error) {
	from, coming, done, err := o.Open(ctx, does)
	defer done()
	defer func() {
		if err != nil {
			coming.End(err)
		}
	}()
	if err != nil {
		return nil, coming, err
	}
	p, err := image.OpenPages(ctx, from, o.Snapshot, o.Images)
	if err != nil {
		return nil, coming, err
	}
	if p.PageSize() != int64(os.Getpagesize()) {
		p.Close()
		return nil, coming, fmt.Errorf("the snapshot has pages of %d bytes, this host of %d: %w", p.PageSize(), os.Getpagesize(), errdefs.ErrFailedPrecondition)
	}
	return p, coming, nil
}

// take takes tasks from the shim until all run. A shim that dies leaves processes that go on, until containerd ends them: they are
// filled as if it lived.
func take(c line, f *lazypages.Filler, from *source, restored *atomic.Pointer[time.Time]) error {
	for tasks := 0; ; {
		m, fd, err := c.receive()
		switch {
		case err == nil && m.Task != nil && fd >= 0:
			tasks++
			err = f.Add(m.Task.ID, lazypages.Task{PID: m.Task.PID, UFFD: fd, Host: m.Task.Host})
		case restored.Load() != nil && err != nil:
			return nil
		case err == nil && m.Restored, errors.Is(err, io.EOF) && tasks > 0:
			now := time.Now()
			restored.Store(&now)
			from.prefetch.stop()
			f.Restored()
			if err == nil {
				_ = c.send(message{Taken: true}, -1) // a shim that has died does not wait for it
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

// tell tells the shim how much memory is there, until ctx ends.
func tell(ctx context.Context, c line, f *lazypages.Filler) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(tellTime):
		}
		there := notes.Memory{Here: min(f.Filled(), f.Total()), Total: f.Total()} // children that were forked count twice
		if err := c.send(message{There: &there}, -1); err != nil {
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
