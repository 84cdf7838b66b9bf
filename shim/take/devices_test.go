package take

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/spec/failure"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/runtime/checkpoint"
	"github.com/cryo-project/cryo/runtime/gpu"
	"github.com/cryo-project/cryo/runtime/gpu/ring"
	"github.com/cryo-project/cryo/shim/job"
	"github.com/cryo-project/cryo/shim/restore"
	"github.com/cryo-project/cryo/shim/restore/restoretest"
)

// handedRecord is what a shim writes of a process that has handed over two pieces on each of two GPUs.
func handedRecord() (gpu.Record, [][]byte) {
	r := restoretest.Handed()
	var contents [][]byte
	for n := range r.Processes[0].Pieces {
		contents = append(contents, bytes.Repeat([]byte{byte(n), 1, 2, 3}, 2<<18))
	}
	return r, contents
}

// shimSends is the shim's side of a checkpoint, with a keeper that sends pieces of each GPU in order. stop is called ahead of the
// last part.
func shimSends(dir, images string, record gpu.Record, contents [][]byte, stop func() error) error {
	conversation, ctx, err := checkpoint.Join(context.Background(), dir)
	if err != nil {
		return err
	}
	defer conversation.End(checkpoint.Result{}, nil)
	if err := record.WriteFile(images); err != nil {
		return err
	}
	f, err := conversation.Devices()
	if err != nil {
		return err
	}
	defer f.Close()
	memory, err := ring.New(ring.Geometry{Slots: 3, SlotBytes: 1 << 20})
	if err != nil {
		return err
	}
	defer memory.Close()
	link, err := ring.Offer(f, memory)
	if err != nil {
		return err
	}
	defer link.Close()
	var sizes []int64
	for _, b := range contents {
		sizes = append(sizes, int64(len(b)))
	}
	return link.Send(ctx, sizes, func(ctx context.Context, s *ring.Sender) error {
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

// takesIn gives what takes device memory in, and where the shim finds it.
func takesIn(t *testing.T) (s *store.Store, d *devices, client *checkpoint.Client, dir, images string) {
	t.Helper()
	dir, images = t.TempDir(), t.TempDir()
	client, err := checkpoint.Listen(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	client.Options = checkpoint.Options{Devices: true}
	begun := begun(t, Options{})
	d = begun.takeInDevices(t.Context(), client, images, t.TempDir())
	t.Cleanup(d.close)
	go func() { _, _ = client.Frozen(context.Background()) }()
	return begun.store, d, client, dir, images
}

// TestDevicesArrive: what a keeper sends makes a snapshot with the same device memory.
func TestDevicesArrive(t *testing.T) {
	s, d, _, dir, images := takesIn(t)
	record, contents := handedRecord()
	sent := make(chan error, 1)
	go func() { sent <- shimSends(dir, images, record, contents, func() error { return nil }) }()
	in, err := d.arrived(t.Context(), &heldContainer{call: make(chan error, 1)})
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
	_, d, client, dir, images := takesIn(t)
	record, contents := handedRecord()
	boom := errors.New("boom")
	go func() { _ = shimSends(dir, images, record, contents, func() error { return boom }) }()
	h := &heldContainer{sub: &candidate{}, client: client, call: make(chan error, 1), released: true, pending: true}
	if err := checkpoint.Leave(dir, errors.New("the keeper was killed")); err != nil {
		t.Fatal(err)
	}
	h.call <- errors.New("what containerd says")
	if _, err := d.arrived(t.Context(), h); err == nil || !strings.Contains(err.Error(), "the keeper was killed") {
		t.Errorf("gives %v", err)
	}
	_, d, _, dir, images = takesIn(t)
	go func() { _ = shimSends(dir, images, record, contents, func() error { return boom }) }()
	var gone *ring.GoneError
	h = &heldContainer{call: make(chan error, 1), released: true}
	if _, err := d.arrived(t.Context(), h); !errors.As(err, &gone) {
		t.Errorf("without the shim's word it gives %v", err)
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
	lost := &job.Error{Lost: true, Err: errors.New("lost")}
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
	for answer, lost := range map[string]bool{"the cryo command is gone": false, "boom": true} {
		dir := t.TempDir()
		client, err := checkpoint.Listen(dir)
		if err != nil {
			t.Fatal(err)
		}
		h := &heldContainer{sub: &candidate{}, client: client, call: make(chan error, 1), cancel: func() {}}
		go func() {
			conversation, ctx, err := checkpoint.Join(context.Background(), dir)
			if err != nil {
				h.call <- err
				return
			}
			decision, err := conversation.Dumped(ctx, checkpoint.Dumped{Devices: true})
			if err == nil {
				t.Errorf("it decides %s, for which all that is on its way is waited for", decision)
			}
			if lost {
				err = checkpoint.Lost("checkpoint", "c", err)
			}
			conversation.End(checkpoint.Result{}, err)
			h.call <- errors.New(answer)
		}()
		if _, err := client.Frozen(t.Context()); err != nil {
			t.Fatal(err)
		}
		err = h.giveUp(t.Context())
		if isLost(err) != lost || !lost && err != nil {
			t.Errorf("%s: got %v", answer, err)
		}
	}
}
