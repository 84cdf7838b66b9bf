package worker

import (
	"context"
	"errors"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/runtime/channel"
	"github.com/cryo-project/cryo/runtime/gpu/device"
)

// DeviceMemory is a snapshot's device memory.
type DeviceMemory struct {
	From     image.Fetcher // has the snapshot's blobs
	Snapshot ocispec.Descriptor
	// Pulling has the segments that are still being pulled; nil: all are here.
	Pulling *store.PullSource
}

// Serve loads device memory for the shim, which it tells over c what comes of that, and sends it to the keeper on peer. It closes both, and ends when all is there, or
// with the shim. ctx ends when what is missing will not come; its cause is told.
func (m *DeviceMemory) Serve(ctx context.Context, c *channel.Channel, peer *os.File) error {
	defer c.Close()
	defer peer.Close()
	err := m.serve(ctx, c, peer)
	if err == nil {
		return c.Send(report{})
	}
	_ = c.Send(report{Failed: failure.Of(err, errdefs.ErrDataLoss, errdefs.ErrAborted)}) // it fails if the shim is dead
	return err
}

func (m *DeviceMemory) serve(ctx context.Context, c *channel.Channel, peer *os.File) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() { // the shim says nothing: what comes is its end
		var none struct{}
		files, _ := c.Receive(&none)
		channel.Close(files)
		cancel(errors.New("the shim has ended"))
	}()
	devices, err := image.OpenDevices(ctx, m.From, m.Snapshot)
	if err != nil {
		return err
	}
	defer devices.Close()
	return SendDevices(ctx, devices, m.Pulling, peer)
}

// deviceReader reads a snapshot's device memory, as an [image.DevicesReader] does.
type deviceReader interface {
	Read(piece int, offset int64, dst []byte) (some bool, err error)
	Close()
}

var _ deviceReader = (*image.DevicesReader)(nil)

// SendDevices sends all pieces to a keeper, but for what is zero, in the order of the record as far as they are here, a slot at a time and as many side by
// side as there are cores. pulling has segments that are still being pulled; nil: all are here. peer remains the caller's.
func SendDevices(ctx context.Context, devices *image.Devices, pulling *store.PullSource, peer *os.File) error {
	var sizes []int64
	for _, p := range devices.Pieces() {
		sizes = append(sizes, p.Size)
	}
	link, err := device.AcceptRing(ctx, peer)
	if err != nil {
		return err
	}
	defer link.Close()
	ctx, cancel := context.WithCancel(ctx) // of following
	defer cancel()
	q := newQueue(sizes, link.Geometry().SlotBytes, devices.Part)
	if q.pulling = pulling != nil; q.pulling {
		go pulling.Follow(ctx, q.look)
	}
	return link.Send(ctx, sizes, func(ctx context.Context, s *device.Sender) error {
		return send(ctx, q, func() (deviceReader, error) { return devices.Reader() }, s)
	})
}

// LoadInto sends all pieces to this process's keeper; all of them are in the local store. It calls receive with the keeper's end of a connection. receive has the keeper read from that end, and closes it.
func LoadInto(ctx context.Context, receive func(context.Context, *os.File) error, devices *image.Devices) error {
	keeper, own, err := connection()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	sent := make(chan error, 1)
	go func() {
		defer own.Close()
		sent <- SendDevices(ctx, devices, nil, own)
	}()
	err = receive(ctx, keeper)
	if err != nil {
		cancel()
	}
	cause := <-sent
	if err != nil && (cause == nil || errors.Is(cause, device.ErrHungUp) || errors.Is(cause, context.Canceled)) {
		return err
	}
	return cause // it knows why the keeper heard no more
}

// send has workers take one part after the other.
func send(ctx context.Context, q *queue, open func() (deviceReader, error), s *device.Sender) error {
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
					q.stop() // none goes on
					return
				}
			}
		})
	}
	work.Wait()
	return errors.Join(append(errs, context.Cause(ctx))...)
}

// telling keeps the keeper patient while segments are awaited, until it is called off: a registry may be slow.
func telling(q *queue, s *device.Sender) (callOff func()) {
	done := make(chan struct{})
	tick := time.NewTicker(device.TellTime)
	go func() {
		defer tick.Stop()
		for q.awaits() {
			select {
			case <-tick.C:
				_ = s.Wait() // a client that is gone is noticed elsewhere
			case <-done:
				return
			}
		}
	}()
	return func() { close(done) }
}
