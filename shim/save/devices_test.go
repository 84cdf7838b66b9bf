package save

import (
	"bytes"
	"context"
	"errors"
	"os"
	"testing"

	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/integration/hosttest"
	"github.com/cryo-project/cryo/runtime/channel"
	"github.com/cryo-project/cryo/runtime/checkpoint"
	"github.com/cryo-project/cryo/runtime/gpu"
	"github.com/cryo-project/cryo/runtime/gpu/device"
	"github.com/cryo-project/cryo/shim/restore"
	"github.com/cryo-project/cryo/shim/worker"
)

// handedRecord is what a shim writes of a process that has handed over two pieces on each of two GPUs.
func handedRecord() (gpu.Record, [][]byte) {
	r := hosttest.Handed()
	var contents [][]byte
	for n := range r.Processes[0].Pieces {
		contents = append(contents, bytes.Repeat([]byte{byte(n), 1, 2, 3}, 2<<18))
	}
	return r, contents
}

// shimOf returns a shim as the checkpoint process sees it, and the shim's end of the channel.
func shimOf(t *testing.T) (*worker.Shim, *channel.Channel) {
	t.Helper()
	other, file, err := channel.Pair()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { other.Close() })
	descriptor, err := unix.Dup(int(file.Fd()))
	file.Close()
	if err != nil {
		t.Fatal(err)
	}
	var o options.CheckpointOptions
	if err := (worker.Request{Checkpoint: &worker.Checkpoint{Order: &worker.CheckpointOrder{}}}).Put(&o); err != nil {
		t.Fatal(err)
	}
	request, err := worker.RequestIn(&o)
	if err != nil {
		t.Fatal(err)
	}
	request.Protocol = request.Asked // that of this release
	if err := other.Send(worker.Message{Request: request}); err != nil {
		t.Fatal(err)
	}
	shims := make(chan *worker.Shim, 1)
	go func() {
		_ = worker.ServeCheckpoint(descriptor, func(_ context.Context, _ worker.Request, shim *worker.Shim) (*worker.Taken, []string, error) {
			shims <- shim
			<-t.Context().Done()
			return &worker.Taken{}, nil, nil
		})
	}()
	return <-shims, other
}

// shimSends is the shim's side of a checkpoint, with a keeper that sends pieces of each GPU in order. stop is called ahead of the
// last part.
func shimSends(shim *channel.Channel, images string, record gpu.Record, contents [][]byte, stop func() error) error {
	ctx := context.Background()
	if err := record.WriteFile(images); err != nil {
		return err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(pair[0]), "devices")
	defer f.Close()
	err = shim.Send(worker.Message{Stream: "devices"}, pair[1])
	unix.Close(pair[1])
	if err != nil {
		return err
	}
	memory, err := device.NewRing(device.RingGeometry{Slots: 3, SlotBytes: 1 << 20})
	if err != nil {
		return err
	}
	defer memory.Close()
	link, err := device.OfferRing(f, memory)
	if err != nil {
		return err
	}
	defer link.Close()
	var sizes []int64
	for _, b := range contents {
		sizes = append(sizes, int64(len(b)))
	}
	return link.Send(ctx, sizes, func(ctx context.Context, s *device.Sender) error {
		g, ctx := errgroup.WithContext(ctx)
		for device := range 2 {
			g.Go(func() error {
				for n := device; n < len(contents); n += 2 {
					for at := 0; at < len(contents[n]); at += 1 << 20 {
						if n == len(contents)-1 && at > 0 {
							if err := stop(); err != nil {
								return err
							}
						}
						if err := s.Put(ctx, n, int64(at), func(dst []byte) (int, error) { return copy(dst, contents[n][at:]), nil }); err != nil {
							return err
						}
					}
				}
				return nil
			})
		}
		return g.Wait()
	})
}

// begun is a checkpoint that needs no container.
func begun(t *testing.T, o Options) *taking {
	t.Helper()
	s, err := store.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	o.SegmentSize, o.Hooks = 1<<20, o.Hooks.OrNobody()
	return &taking{Options: o, store: s, sender: &sender{}}
}

// takesIn returns a checkpoint that takes device memory in, and the end of the channel by which a test plays the shim.
func takesIn(t *testing.T) (s *store.Store, d *devices, h *heldContainer, shim *channel.Channel, images string) {
	t.Helper()
	images = t.TempDir()
	begun := begun(t, Options{})
	begun.shim, shim = shimOf(t)
	d = begun.takeInDevices(t.Context(), images, t.TempDir())
	t.Cleanup(d.close)
	return begun.store, d, &heldContainer{sub: &candidate{}, shim: begun.shim, released: true}, shim, images
}

// TestDevicesArrive: what a keeper sends makes a snapshot with the same device memory.
func TestDevicesArrive(t *testing.T) {
	s, d, h, shim, images := takesIn(t)
	record, contents := handedRecord()
	sent := make(chan error, 1)
	go func() { sent <- shimSends(shim, images, record, contents, func() error { return nil }) }()
	in, err := d.arrived(t.Context(), h)
	if err != nil {
		t.Fatal(err)
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
	d.hurry()
	op, err := s.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer op.Close()
	src := image.PackSource{Images: images, Device: in, Config: image.Config{Spec: []byte("{}"), GPU: &record.GPU}}
	desc, err := image.Pack(t.Context(), s, src, image.PackOptions{SegmentSize: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	devices, err := image.OpenDevices(t.Context(), s, desc)
	if err != nil {
		t.Fatal(err)
	}
	defer devices.Close()
	r, err := devices.Reader()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for n, want := range contents {
		got := make([]byte, len(want))
		if _, err := r.Read(n, 0, got); err != nil || !bytes.Equal(got, want) {
			t.Errorf("piece %d is another, %v", n, err)
		}
	}
}

// TestDevicesCutOff: a keeper that ends makes no snapshot, and the shim's word for it is what the user hears.
func TestDevicesCutOff(t *testing.T) {
	for _, said := range []bool{true, false} {
		_, d, h, shim, images := takesIn(t)
		record, contents := handedRecord()
		go func() {
			_ = shimSends(shim, images, record, contents, func() error { return errors.New("boom") })
			end := worker.Message{Ended: true}
			if said {
				end.Failed = failure.Of(errors.New("the keeper was killed"))
			}
			_ = shim.Send(end)
		}()
		_, err := d.arrived(t.Context(), h)
		if said && (err == nil || err.Error() != "the keeper was killed") || !said && !errors.Is(err, device.ErrHungUp) {
			t.Errorf("the shim has said something: %v; got %v", said, err)
		}
	}
}

// TestDevicesFullDisk: what went wrong here is what the user hears, not that the shim was hung up on.
func TestDevicesFullDisk(t *testing.T) {
	d := &devices{incoming: incoming{done: make(chan struct{}), err: restore.NoRoom("/x", errors.New("full"))}}
	d.begun.Store(true)
	remote := errors.New("the other process has hung up")
	if err := d.explain(t.Context(), remote); err != remote {
		t.Errorf("before it knows, %v", err)
	}
	close(d.done)
	if err := d.explain(t.Context(), remote); !errdefs.IsResourceExhausted(err) {
		t.Errorf("gives %v", err)
	}
	lost := &restore.JobError{Lost: true, Err: errors.New("lost")}
	if err := d.explain(t.Context(), lost); err != lost {
		t.Errorf("gives %v", err)
	}
	d.begun.Store(false)
	if err := d.explain(t.Context(), remote); err != remote {
		t.Errorf("with nothing handed over, %v", err)
	}
}

// TestDevicesNever: where nothing is handed over, nothing waits for it.
func TestDevicesNever(t *testing.T) {
	_, d, _, _, _ := takesIn(t)
	d.close()
	if d.intake != nil || !errors.Is(d.err, context.Canceled) {
		t.Errorf("got %v, %v", d.intake, d.err)
	}
}

func TestCheckEngine(t *testing.T) {
	for _, engine := range []string{"", image.DriverEngine, image.KeeperEngine} {
		for _, gpus := range []*image.GPU{{}, nil} {
			err := begun(t, Options{Container: "llm", GPUEngine: engine}).checkEngine(gpus)
			if refused := engine == image.KeeperEngine && gpus == nil; (err != nil) != refused || refused && (!errdefs.IsFailedPrecondition(err) || failure.Hint(err) == "") {
				t.Errorf("%q, GPUs %v: %v", engine, gpus, err)
			}
		}
	}
}

// TestGiveUp: where there will be no snapshot, a container is not left standing until its device memory has come, and only its loss is told.
func TestGiveUp(t *testing.T) {
	for answer, lost := range map[string]bool{"the checkpoint process wants it undone": false, "boom": true} {
		shim, other := shimOf(t)
		go func() {
			err := errors.New(answer)
			if lost {
				err = checkpoint.Lost("checkpoint", "c", err)
			}
			dumped := &checkpoint.Dumped{Devices: true}
			for m := (worker.Message{}); ; m = (worker.Message{}) {
				fds, failed := other.Receive(&m)
				channel.Close(fds)
				switch {
				case failed != nil:
					return
				case m.Hold != nil:
					_ = other.Send(worker.Message{Dumped: dumped})
				case m.Undo:
					_ = other.Send(worker.Message{Ended: true, Failed: failure.Of(err)})
				case m.Taken != nil: // its last word, when the test ends
				default:
					t.Errorf("it says %+v, for which all that is on its way is waited for", m)
				}
			}
		}()
		if _, err := shim.Hold(t.Context(), worker.Hold{}, nil); err != nil {
			t.Fatal(err)
		}
		err := (&heldContainer{sub: &candidate{}, shim: shim}).giveUp()
		if isLost(err) != lost || !lost && err != nil {
			t.Errorf("%s: got %v", answer, err)
		}
	}
}
