package lazypull

import (
	"bytes"
	"context"
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
	segments "github.com/cryo-project/cryo/image/segment"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/image/store/storetest"
)

// rig is a source of one segment, which is not there yet.
type rig struct {
	store   *store.Store
	segment ocispec.Descriptor
	data    []byte
	source  *Source
	fetched atomic.Int64 // requests
	err     atomic.Pointer[error]
	held    chan struct{} // a request waits until it is closed, and fails; nil: it does not
}

func newRig(t *testing.T) *rig {
	t.Helper()
	data := storetest.Bytes(1, 3<<20)
	r := &rig{store: storetest.Open(t), data: data,
		segment: ocispec.Descriptor{MediaType: image.MediaTypeSegment, Digest: digest.FromBytes(data), Size: int64(len(data))}}
	r.source = NewSource(t.Context(), r.store, func(_ context.Context, d ocispec.Descriptor, off int64, p []byte, _ Why) error {
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

// TestSource reads a segment before it is there, while it grows, when it is whole and when it is gone again.
func TestSource(t *testing.T) {
	r := newRig(t)
	a := r.open(t)
	r.reads(t, a, 2<<20, 4096)
	r.reads(t, a, 0, 1<<20)
	if n := r.fetched.Load(); n != 2 || a.There(1) {
		t.Errorf("fetched %d times; there: %v", n, a.There(1))
	}
	var arrivals atomic.Int64
	following := make(chan struct{})
	go func() {
		r.source.Follow(t.Context(), func() { arrivals.Add(1) })
		close(following)
	}()
	p := r.partial(t)
	if _, err := p.Write(r.data[:1<<20]); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return a.There(1<<20) && arrivals.Load() > 0 })
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
	if _, err := p.Write(r.data[1<<20:]); err != nil {
		t.Fatal(err)
	}
	if err := p.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-following
	verified := func() bool {
		_, ok := a.(interface {
			Verified() (segments.Verified, bool)
		}).Verified()
		return ok
	}
	if verified() {
		t.Error("it is taken for verified before it is held")
	}
	if err := r.source.Hold(t.Context()); err != nil {
		t.Fatal(err)
	}
	if root := os.Geteuid() == 0; verified() != root {
		t.Errorf("held, it is verified: %v, root: %v", !root, root)
	}
	if err := os.Remove(filepath.Join(r.store.Layout(), "blobs", "sha256", r.segment.Digest.Encoded())); err != nil {
		t.Fatal(err)
	}
	r.reads(t, a, 100, 3<<20-100)
	if n := r.fetched.Load(); n != 4 {
		t.Errorf("fetched what is held: %d", n)
	}
}

// partial is the segment on its way into the store, of which nothing has come.
func (r *rig) partial(t *testing.T) *store.Partial {
	t.Helper()
	op, err := r.store.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { op.Close() })
	p, err := r.store.Partial(t.Context(), r.segment)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// bring brings the segment into the store, by other hands.
func (r *rig) bring(t *testing.T) {
	t.Helper()
	p := r.partial(t)
	if _, err := p.Write(r.data); err != nil {
		t.Fatal(err)
	}
	if err := p.Commit(t.Context()); err != nil {
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
	if err := r.source.Hold(t.Context()); err != nil {
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
	r.reads(t, a, 0, 10)
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
