package store_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/format"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/integration/storetest"
)

// rig is a source of one segment, which is not there yet.
type rig struct {
	store   *store.Store
	segment ocispec.Descriptor
	data    []byte
	source  *store.PullSource
	fetched atomic.Int64 // requests
	err     atomic.Pointer[error]
	held    chan struct{} // a request waits until it is closed, and fails; nil: it does not
}

func newRig(t *testing.T) *rig {
	t.Helper()
	data := storetest.Bytes(1, 3<<20)
	r := &rig{store: storetest.Open(t), data: data,
		segment: ocispec.Descriptor{MediaType: image.MediaTypeSegment, Digest: digest.FromBytes(data), Size: int64(len(data))}}
	var err error
	r.source, err = store.NewPullSource(t.Context(), r.store, func(_ context.Context, d ocispec.Descriptor, off int64, p []byte, _ bool) error {
		r.fetched.Add(1)
		if r.held != nil {
			<-r.held
			return errdefs.ErrUnavailable
		}
		if d.Digest != r.segment.Digest {
			t.Errorf("asked for %s", d.Digest)
		}
		copy(p, data[off:])
		if err := r.err.Load(); err != nil {
			return *err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.source.Close)
	return r
}

// open opens the segment.
func (r *rig) open(t *testing.T) image.Arriving {
	t.Helper()
	rc, err := r.source.Fetch(t.Context(), r.segment)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rc.Close() })
	a, ok := rc.(image.Arriving)
	if !ok {
		t.Fatalf("it is a %T", rc)
	}
	return a
}

// reads reads a part and compares it.
func (r *rig) reads(t *testing.T, a image.Arriving, off, n int) {
	t.Helper()
	p := make([]byte, n)
	if got, err := a.ReadAt(p, int64(off)); got != n || err != nil || !bytes.Equal(p, r.data[off:off+n]) {
		t.Errorf("read %d at %d: %d, %v", n, off, got, err)
	}
}

// write has the pull bring bytes, and the source know.
func (r *rig) write(t *testing.T, p *store.Ingest, b []byte) {
	t.Helper()
	if _, err := p.Write(b); err != nil {
		t.Fatal(err)
	}
	r.source.Came(r.segment, p.Offset())
}

// trusted tells whether the frames of a segment need no digests.
func trusted(a image.Arriving) bool {
	_, ok := a.(interface {
		Verified() (format.Verified, bool)
	}).Verified()
	return ok
}

// TestSource reads a segment before it is there, while it grows, when it is whole and when it is gone again.
func TestSource(t *testing.T) {
	r := newRig(t)
	a := r.open(t)
	r.reads(t, a, 2<<20, 4096)
	r.reads(t, a, 0, 1<<20)
	r.reads(t, a, 0, 1<<20)
	if n := r.fetched.Load(); n != 2 || a.There(1) {
		t.Errorf("fetched %d times; there: %v", n, a.There(1))
	}
	var arrivals atomic.Int64
	following, stop := context.WithCancel(t.Context())
	followed := make(chan struct{})
	go func() {
		r.source.Follow(following, func() { arrivals.Add(1) })
		close(followed)
	}()
	eventually(t, func() bool { return arrivals.Load() == 1 })
	p := r.partial(t)
	ahead := make([]byte, 1<<20)
	if n, err := r.source.Ahead(t.Context(), r.segment, 4096, ahead); n != 1<<20-4096 || err != nil || !bytes.Equal(ahead[:n], r.data[4096:1<<20]) {
		t.Errorf("%d bytes have come ahead, %v", n, err)
	}
	if n, err := r.source.Ahead(t.Context(), r.segment, 1<<20, ahead); n != 0 || err != nil {
		t.Errorf("%d bytes have come ahead, %v", n, err)
	}
	if end := r.source.Gap(r.segment, 1<<20, 3<<20); end != 2<<20 {
		t.Errorf("the gap ends at %d", end)
	}
	if end := r.source.Gap(r.segment, 2<<20+4096, 3<<20); end != 3<<20 {
		t.Errorf("the last gap ends at %d", end)
	}
	r.write(t, p, r.data[:1<<20])
	if !a.There(1 << 20) {
		t.Error("what has come is not there")
	}
	eventually(t, func() bool { return arrivals.Load() > 1 })
	r.reads(t, a, 4096, 1<<20-4096)
	if n := r.fetched.Load(); n != 2 {
		t.Errorf("fetched what is there: %d", n)
	}
	r.reads(t, a, 4096, 1<<20) // more than is there
	if n := r.fetched.Load(); n != 3 || a.There(1<<20+1) {
		t.Errorf("fetched %d times", n)
	}
	again := make([]byte, 4096)
	if _, err := a.ReadAgain(again, 0); err != nil || r.fetched.Load() != 4 || !bytes.Equal(again, r.data[:4096]) {
		t.Errorf("read again: %v, fetched %d times", err, r.fetched.Load())
	}
	r.write(t, p, r.data[1<<20:])
	if trusted(a) {
		t.Error("it is taken for verified before it is")
	}
	if err := p.Verify(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Commit(t.Context(), r.segment.MediaType); err != nil {
		t.Fatal(err)
	}
	if err := r.source.Verified(r.segment); err != nil {
		t.Fatal(err)
	}
	if root := os.Geteuid() == 0; trusted(a) != root {
		t.Errorf("it is verified: %v, root: %v", !root, root)
	}
	stop()
	<-followed
	if err := os.Remove(filepath.Join(r.store.Layout(), "blobs", "sha256", r.segment.Digest.Encoded())); err != nil {
		t.Fatal(err)
	}
	r.reads(t, a, 100, 3<<20-100)
	if n := r.fetched.Load(); n != 4 {
		t.Errorf("fetched what is held: %d", n)
	}
}

// TestDamaged has damaged bytes come, and then the right ones.
func TestDamaged(t *testing.T) {
	r := newRig(t)
	p := r.partial(t)
	a := r.open(t)
	r.write(t, p, make([]byte, len(r.data)))
	if err := p.Verify(t.Context()); !errdefs.IsDataLoss(err) {
		t.Fatal(err)
	}
	r.reads(t, a, 0, 4096) // the file has them no more, which the source does not know yet
	r.source.Came(r.segment, 0)
	r.reads(t, a, 0, 4096)
	if n := r.fetched.Load(); n != 2 {
		t.Errorf("fetched %d times", n)
	}
	r.write(t, p, r.data[:1<<20])
	r.reads(t, a, 0, 1<<20)
	if n := r.fetched.Load(); n != 2 {
		t.Errorf("fetched %d times", n)
	}
}

// TestWhole has a segment there when it is verified, and not before, though all of its bytes are. What is there is the very file that was pulled, whatever has its name.
func TestWhole(t *testing.T) {
	for name, late := range map[string]bool{"opened before": false, "opened after": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.source.Whole = true
			p := r.partial(t)
			r.write(t, p, r.data)
			var a image.Arriving
			if !late {
				a = r.open(t)
				r.reads(t, a, 0, 4096)
				if a.There(1) || trusted(a) {
					t.Error("it is there, and nobody has verified it")
				}
			}
			path := filepath.Join(r.store.Root(), "partial", r.segment.Digest.Encoded())
			if err := os.Rename(path, path+"-"); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, make([]byte, len(r.data)), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := r.source.Verified(r.segment); err != nil {
				t.Fatal(err)
			}
			if late {
				a = r.open(t)
			}
			if !a.There(r.segment.Size) {
				t.Error("it is verified, and not there")
			}
			r.reads(t, a, 0, len(r.data))
			if root := os.Geteuid() == 0; trusted(a) != root {
				t.Errorf("it is verified: %v, root: %v", !root, root)
			}
		})
	}
}

// TestStored has a segment come into the store by other hands, and refuses one that is not all there.
func TestStored(t *testing.T) {
	r := newRig(t)
	a := r.open(t)
	r.bring(t)
	if err := r.source.Stored(t.Context(), r.segment); err != nil || !a.There(r.segment.Size) {
		t.Errorf("it is in the store, and not there: %v", err)
	}
	r.reads(t, a, 0, len(r.data))
	if n := r.fetched.Load(); n != 0 {
		t.Errorf("fetched %d times", n)
	}

	r = newRig(t)
	r.write(t, r.partial(t), r.data[:4096])
	if err := r.source.Verified(r.segment); err == nil {
		t.Error("a segment that is not all there is taken")
	}
}

// partial is the segment on its way into the store, of which nothing has come.
func (r *rig) partial(t *testing.T) *store.Ingest {
	t.Helper()
	op, err := r.store.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { op.Close() })
	p, err := r.store.Resume(t.Context(), r.segment)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	f, err := p.Content()
	if err != nil {
		t.Fatal(err)
	}
	r.source.Begin(r.segment, f, p.Offset())
	return p
}

// bring brings the segment into the store, by other hands.
func (r *rig) bring(t *testing.T) {
	t.Helper()
	if err := r.store.Push(t.Context(), r.segment, bytes.NewReader(r.data)); err != nil {
		t.Fatal(err)
	}
}

// TestLate has a request under way when all has come: what is here by then is taken, whatever becomes of the request.
func TestLate(t *testing.T) {
	r := newRig(t)
	r.held = make(chan struct{})
	a := r.open(t)
	read := make(chan struct{})
	go func() {
		r.reads(t, a, 5, 4096)
		close(read)
	}()
	eventually(t, func() bool { return r.fetched.Load() == 1 })
	r.bring(t)
	if err := r.source.Stored(t.Context(), r.segment); err != nil {
		t.Error(err)
	}
	close(r.held)
	<-read
}

// TestAway has a request fail: it fails for who reads, or is made again as long as Away says so, until it brings what is wanted or another process has.
func TestAway(t *testing.T) {
	r := newRig(t)
	a := r.open(t)
	gone := error(errdefs.ErrUnavailable)
	r.err.Store(&gone)
	if n, err := a.ReadAt(make([]byte, 10), 0); n != 0 || !errdefs.IsUnavailable(err) {
		t.Errorf("gives %d bytes, %v", n, err)
	}
	again := 3
	r.source.Away = func(_ context.Context, err error) bool {
		if !errdefs.IsUnavailable(err) {
			t.Errorf("away for %v", err)
		}
		again--
		return again > 0
	}
	if n, err := a.ReadAt(make([]byte, 10), 0); n != 0 || !errdefs.IsUnavailable(err) || again != 0 {
		t.Errorf("gives %d bytes, %v, and may ask %d times more", n, err, again)
	}
	r.source.Away = func(context.Context, error) bool {
		r.err.Store(nil)
		return true
	}
	r.reads(t, a, 0, 10)
	r.err.Store(&gone)
	r.source.Away = func(context.Context, error) bool {
		r.bring(t)
		return true
	}
	before := r.fetched.Load()
	r.reads(t, a, 100, 10)
	if n := r.fetched.Load() - before; n != 1 {
		t.Errorf("asked %d times for what another process has brought", n)
	}
}

func eventually(t *testing.T, check func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !check(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it does not come")
		}
	}
}

// TestSeveral reads from many goroutines.
func TestSeveral(t *testing.T) {
	r := newRig(t)
	a := r.open(t)
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			for j := range 20 {
				r.reads(t, a, i*4096+j, 64<<10)
			}
		})
	}
	all.Wait()
}

// TestUnstored: what the pull cannot store counts as there, and comes when it is read.
func TestUnstored(t *testing.T) {
	r := newRig(t)
	r.source.Whole = true
	a := r.open(t)
	var told atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	followed := make(chan struct{})
	go func() {
		r.source.Follow(ctx, func() { told.Add(1) })
		close(followed)
	}()
	eventually(t, func() bool { return told.Load() == 1 })
	if a.There(r.segment.Size) || r.source.IsUnstored() {
		t.Error("it is there before anything has come")
	}
	r.source.Unstored()
	eventually(t, func() bool { return told.Load() > 1 })
	stop()
	<-followed
	if !a.There(r.segment.Size) || !r.source.IsUnstored() || trusted(a) {
		t.Errorf("it is there: %t, trusted: %t", a.There(r.segment.Size), trusted(a))
	}
	r.reads(t, a, 1<<20, 1<<20)
}

// TestAgain: damaged bytes are asked for at once, and then as often as Away waits, up to a bound.
func TestAgain(t *testing.T) {
	r := newRig(t)
	a := r.open(t)
	wrong := errors.New("it is damaged")
	if !a.Again(0, wrong) || a.Again(1, wrong) {
		t.Error("without a registry that is waited for, it is asked for once")
	}
	waited := 0
	r.source.Away = func(_ context.Context, err error) bool {
		if !errors.Is(err, wrong) {
			t.Errorf("it waits for %v", err)
		}
		waited++
		return true
	}
	tries := 0
	for a.Again(tries, wrong) {
		tries++
	}
	if tries != store.DamagedTries || waited != store.DamagedTries-1 {
		t.Errorf("it is asked for %d times, after %d pauses", tries, waited)
	}
	r.bring(t)
	if !a.Again(1, wrong) || !a.There(r.segment.Size) {
		t.Error("what another process has brought is not taken")
	}
}
