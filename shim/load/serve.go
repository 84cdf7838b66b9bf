package load

import (
	"context"
	"errors"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/image/warm"
	"github.com/cryo-project/cryo/runtime/channel"
	"github.com/cryo-project/cryo/runtime/gpu/ring"
)

// Serve is the daemon: it does what the shim says on descriptor 3, sends to the holder on descriptor 4, and ends when all is there, or with
// the shim.
func Serve() error {
	c, err := channel.Open(channelDescriptor)
	if err != nil {
		return err
	}
	defer c.Close()
	unix.CloseOnExec(peerDescriptor)
	name, _ := unix.BytePtrFromString("cryo-load")
	_ = unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(name)), 0, 0, 0) // for ps; it was exe
	peer := os.NewFile(peerDescriptor, "holder")
	defer peer.Close()
	err = serve(c, peer)
	if err == nil {
		return c.Send(report{Sent: true})
	}
	f := &failed{Reason: err.Error(), Damage: errdefs.IsDataLoss(err)}
	var h interface{ Hint() string }
	if errors.As(err, &h) {
		f.Hint = h.Hint()
	}
	return errors.Join(err, c.Send(report{Failed: f}))
}

func serve(c *channel.Channel, peer *os.File) error {
	var o Order
	files, err := c.Receive(&o)
	channel.Close(files) // the shim sends none
	if err != nil {
		return err
	}
	// The shim says no more: what comes is its end.
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	go func() {
		var none struct{}
		_, _ = c.Receive(&none)
		cancel(errors.New("the shim has ended"))
	}()
	devices, err := Open(ctx, o)
	if err != nil {
		return err
	}
	defer devices.Close()
	if err := c.Send(report{Ready: true}); err != nil {
		return err
	}
	return Send(ctx, devices, peer)
}

// Open opens all that will be needed: what happens to the store and to the command's directories afterwards does no harm.
func Open(ctx context.Context, o Order) (*image.Devices, error) {
	s, err := store.Open(o.Root)
	if err != nil {
		return nil, err
	}
	var from image.Fetcher = s
	ready, err := warm.New(o.Root).Find(ctx, o.Snapshot.Digest)
	if err != nil {
		return nil, err
	}
	if ready != nil {
		defer ready.Close() // what is open by then stays
		from = ready
	}
	return image.OpenDevices(ctx, from, o.Snapshot)
}

// reader reads a snapshot's device memory, as an [image.DevicesReader] does.
type reader interface {
	Read(piece int, offset int64, dst []byte) (some bool, err error)
	Close()
}

var _ reader = (*image.DevicesReader)(nil)

// Send sends all pieces in the order of the record to a holder, but for what is zero, a slot at a time and as many side by side as there
// are cores. peer remains the caller's.
func Send(ctx context.Context, devices *image.Devices, peer *os.File) error {
	var sizes []int64
	for _, p := range devices.Pieces() {
		sizes = append(sizes, p.Size)
	}
	link, err := ring.Accept(ctx, peer)
	if err != nil {
		return err
	}
	defer link.Close()
	slot := link.Geometry().SlotBytes
	return link.Send(ctx, sizes, func(ctx context.Context, s *ring.Sender) error {
		return split(ctx, sizes, slot, func() (reader, error) { return devices.Reader() }, s)
	})
}

// split has workers take one part after the other of pieces of these sizes.
func split(ctx context.Context, sizes []int64, part int64, open func() (reader, error), s *ring.Sender) error {
	var first []int64 // number of each piece's first part
	var count int64
	for _, size := range sizes {
		first = append(first, count)
		count += (size + part - 1) / part
	}
	var next atomic.Int64
	errs := make([]error, runtime.GOMAXPROCS(0))
	var work sync.WaitGroup
	for i := range errs {
		work.Add(1)
		go func() {
			defer work.Done()
			r, err := open()
			if err != nil {
				errs[i] = err
				return
			}
			defer r.Close()
			for at := 0; ctx.Err() == nil; {
				n := next.Add(1) - 1
				if n >= count {
					return
				}
				for at+1 < len(first) && first[at+1] <= n {
					at++
				}
				offset := (n - first[at]) * part
				errs[i] = s.Put(ctx, at, offset, func(dst []byte) (int, error) {
					some, err := r.Read(at, offset, dst)
					if err != nil || !some {
						return 0, err
					}
					return len(dst), nil
				})
				if errs[i] != nil {
					next.Store(count) // nobody goes on
					return
				}
			}
		}()
	}
	work.Wait()
	return errors.Join(append(errs, context.Cause(ctx))...)
}
