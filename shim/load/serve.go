package load

import (
	"context"
	"errors"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/spec/failure"
	"github.com/cryo-project/cryo/runtime/channel"
	"github.com/cryo-project/cryo/runtime/gpu/ring"
	"github.com/cryo-project/cryo/shim/order"
)

// Serve is the daemon: it does what the shim says on descriptor 3, sends to the keeper on descriptor 4, and ends when all is there, or with
// the shim.
func Serve() error {
	c, err := channel.Open(channelDescriptor)
	if err != nil {
		return err
	}
	defer c.Close()
	unix.CloseOnExec(peerDescriptor)
	_ = os.WriteFile("/proc/self/comm", []byte("cryo-load"), 0) // for ps; it was exe
	peer := os.NewFile(peerDescriptor, "keeper")
	defer peer.Close()
	err = serve(c, peer)
	if err == nil {
		return c.Send(report{Sent: true})
	}
	return errors.Join(err, c.Send(report{Failed: failure.Of(err, errdefs.ErrDataLoss, errdefs.ErrAborted)}))
}

func serve(c *channel.Channel, peer *os.File) (err error) {
	var o order.Order
	files, err := c.Receive(&o)
	channel.Close(files) // the shim sends none
	if err != nil {
		return err
	}
	defer func() { err = o.Damaged(err) }()
	// The shim says no more: what comes is its end.
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	go func() {
		var none struct{}
		_, _ = c.Receive(&none)
		cancel(errors.New("the shim has ended"))
	}()
	m, err := Open(ctx, o)
	if err != nil {
		return err
	}
	defer m.Close()
	if err := c.Send(report{Ready: true}); err != nil {
		return err
	}
	return Send(ctx, m, peer)
}

// reader reads a snapshot's device memory, as an [image.DevicesReader] does.
type reader interface {
	Read(piece int, offset int64, dst []byte) (some bool, err error)
	Close()
}

var _ reader = (*image.DevicesReader)(nil)

// Send sends all pieces to a keeper, but for what is zero, in the order of the record as far as they are here, a slot at a time and as many side by
// side as there are cores. peer remains the caller's.
func Send(ctx context.Context, m *Memory, peer *os.File) error {
	var sizes []int64
	for _, p := range m.Pieces() {
		sizes = append(sizes, p.Size)
	}
	link, err := ring.Accept(ctx, peer)
	if err != nil {
		return err
	}
	defer link.Close()
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	q := newQueue(sizes, link.Geometry().SlotBytes, m.Part)
	m.arrive(ctx, q, fail)
	return link.Send(ctx, sizes, func(ctx context.Context, s *ring.Sender) error {
		return send(ctx, q, func() (reader, error) { return m.Reader() }, s)
	})
}

// send has workers take one part after the other.
func send(ctx context.Context, q *queue, open func() (reader, error), s *ring.Sender) error {
	defer context.AfterFunc(ctx, q.stop)()
	defer telling(q, s)()
	errs := make([]error, runtime.GOMAXPROCS(0))
	var work sync.WaitGroup
	for i := range errs {
		work.Go(func() {
			r, err := open()
			if err != nil {
				errs[i] = err
				q.stop()
				return
			}
			defer r.Close()
			for {
				p, some := q.next()
				if !some {
					return
				}
				errs[i] = s.Put(ctx, p.piece, p.offset, func(dst []byte) (int, error) {
					some, err := r.Read(p.piece, p.offset, dst)
					if err != nil || !some {
						return 0, err
					}
					return len(dst), nil
				})
				if errs[i] != nil {
					q.stop() // nobody goes on
					return
				}
			}
		})
	}
	work.Wait()
	return errors.Join(append(errs, context.Cause(ctx))...)
}

// telling keeps the keeper patient while segments are awaited, until it is called off: a registry may be slow.
func telling(q *queue, s *ring.Sender) (callOff func()) {
	done := make(chan struct{})
	tick := time.NewTicker(ring.TellTime)
	go func() {
		defer tick.Stop()
		for q.awaits() {
			select {
			case <-tick.C:
				_ = s.Wait() // who is gone is noticed elsewhere
			case <-done:
				return
			}
		}
	}()
	return func() { close(done) }
}
