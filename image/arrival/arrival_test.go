package arrival

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image"
	segments "github.com/cryo-project/cryo/image/segment"
	"github.com/cryo-project/cryo/image/spec/failure"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/image/store/storetest"
)

// rig is a server, a client and a source of one segment, none of which is there yet.
type rig struct {
	store   *store.Store
	segment ocispec.Descriptor
	data    []byte
	server  *Server
	client  *Client
	source  *Source
	fetched atomic.Int64 // requests
	err     error        // of fetching
	held    bool         // a request waits until the server ends
}

func newRig(t *testing.T) *rig {
	t.Helper()
	data := storetest.Bytes(1, 3<<20)
	r := &rig{store: storetest.Open(t), data: data,
		segment: ocispec.Descriptor{MediaType: image.MediaTypeSegment, Digest: digest.FromBytes(data), Size: int64(len(data))}}
	dir := t.TempDir()
	var err error
	r.server, err = Serve(t.Context(), dir, func(ctx context.Context, d ocispec.Descriptor, off int64, p []byte, _ Why) error {
		r.fetched.Add(1)
		if r.held {
			<-ctx.Done()
			return context.Cause(ctx)
		}
		if d.Digest != r.segment.Digest {
			t.Errorf("asked for %s", d.Digest)
		}
		copy(p, data[off:])
		return r.err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.server.Close)
	if r.client, err = Dial(dir, "reads"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.client.Close)
	r.source = NewSource(t.Context(), r.store, r.client.Read)
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

// Who waits to be alone waits for clients that need something, and no longer than it may.
func TestAlone(t *testing.T) {
	r := newRig(t)
	watched := func() bool {
		r.server.mu.Lock()
		defer r.server.mu.Unlock()
		return len(r.server.watching) > 0
	}
	for deadline := time.Now().Add(5 * time.Second); !watched(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the client is not there")
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	r.server.Alone(ctx)
	if ctx.Err() == nil {
		t.Error("it did not wait for a client")
	}
	alone := make(chan struct{})
	go func() {
		r.server.Alone(t.Context())
		close(alone)
	}()
	r.client.End(nil)
	select {
	case <-alone:
	case <-time.After(5 * time.Second):
		t.Fatal("it waits for a client that needs nothing any more")
	}
	r.server.Alone(t.Context())
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
	op, err := r.store.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer op.Close()
	p, err := r.store.Partial(t.Context(), r.segment)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
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
	complete := make(chan error, 1)
	go func() { complete <- r.server.Complete() }()
	if err := r.client.Wait(); err != nil {
		t.Fatal(err)
	}
	if err := r.source.Hold(t.Context()); err != nil {
		t.Fatal(err)
	}
	if root := os.Geteuid() == 0; verified() != root {
		t.Errorf("held, it is verified: %v, root: %v", !root, root)
	}
	select {
	case err := <-complete:
		t.Fatalf("the server does not wait: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	r.client.End(nil)
	if err := <-complete; err != nil {
		t.Error(err)
	}
	r.server.Close()
	if err := os.Remove(filepath.Join(r.store.Layout(), "blobs", "sha256", r.segment.Digest.Encoded())); err != nil {
		t.Fatal(err)
	}
	r.reads(t, a, 100, 3<<20-100)
	if n := r.fetched.Load(); n != 4 {
		t.Errorf("fetched what is held: %d", n)
	}
}

// TestLate has a request under way when all has come and the server ends: what is here by then is taken.
func TestLate(t *testing.T) {
	r := newRig(t)
	r.held = true
	a := r.open(t)
	read := make(chan struct{})
	go func() {
		r.reads(t, a, 5, 4096)
		close(read)
	}()
	eventually(t, func() bool { return r.fetched.Load() == 1 })
	op, err := r.store.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer op.Close()
	p, err := r.store.Partial(t.Context(), r.segment)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if _, err := p.Write(r.data); err != nil {
		t.Fatal(err)
	}
	if err := p.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = r.client.Wait()
		if err := r.source.Hold(t.Context()); err != nil {
			t.Error(err)
		}
		r.client.End(nil)
	}()
	if err := r.server.Complete(); err != nil {
		t.Error(err)
	}
	r.server.Close()
	<-read
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

// TestFails ends either side: the other has an error at once.
func TestFails(t *testing.T) {
	for name, test := range map[string]struct {
		do     func(*rig)
		client func(error) bool // nil: it does not wait
		server func(error) bool
	}{
		"the pull": {func(r *rig) { r.server.Fail(errdefs.ErrDataLoss) }, errdefs.IsDataLoss, errdefs.IsDataLoss},
		"a request": {func(r *rig) {
			r.err = errdefs.ErrUnavailable
			_ = r.client.Read(context.Background(), r.segment, 0, make([]byte, 1), Wanted)
		}, errdefs.IsUnavailable, errdefs.IsUnavailable},
		"the server": {func(r *rig) { r.server.Close() }, func(err error) bool { return err != nil }, func(err error) bool { return err != nil }},
		"the client": {func(r *rig) { r.client.Close() }, nil, func(err error) bool {
			return errors.As(err, new(*LeftError)) && strings.Contains(err.Error(), "that reads has ended")
		}},
		"the contents": {func(r *rig) { r.client.End(errdefs.ErrDataLoss) }, nil, errdefs.IsDataLoss},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			waits := make(chan error, 1)
			if test.client != nil {
				go func() { waits <- r.client.Wait() }()
			}
			eventually(t, func() bool {
				r.server.mu.Lock()
				defer r.server.mu.Unlock()
				return len(r.server.watching) == 1
			})
			test.do(r)
			<-r.server.Failed()
			if err := r.server.Complete(); !test.server(err) {
				t.Errorf("the server says %v", err)
			}
			if test.client != nil {
				if err := <-waits; !test.client(err) {
					t.Errorf("the client says %v", err)
				}
				if err := r.client.Read(t.Context(), r.segment, 0, make([]byte, 1), Wanted); err == nil {
					t.Error("it serves still")
				}
			}
		})
	}
}

// TestReadEnds has a reader give up.
func TestReadEnds(t *testing.T) {
	release := make(chan struct{})
	dir := t.TempDir()
	s, err := Serve(t.Context(), dir, func(context.Context, ocispec.Descriptor, int64, []byte, Why) error { <-release; return nil })
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	defer close(release)
	c, err := Dial(dir, "reads")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	why := errors.New("why")
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(20*time.Millisecond, func() { cancel(why) })
	if err := c.Read(ctx, ocispec.Descriptor{Size: 10}, 0, make([]byte, 10), Wanted); !errors.Is(err, why) {
		t.Errorf("it says %v", err)
	}
}

// FuzzMessage reads messages of any kind: what is taken is within its limits and reads back as it is written.
func FuzzMessage(f *testing.F) {
	var b bytes.Buffer
	for _, m := range []message{{Watch: "reads"}, {Bytes: 4096}, {Failed: &failure.Error{Message: "x"}}, {Read: &part{Segment: ocispec.Descriptor{Size: 8}, Length: 8}}} {
		b.Reset()
		if err := writeMessage(&b, m); err != nil {
			f.Fatal(err)
		}
		f.Add(bytes.Clone(b.Bytes()))
	}
	f.Add([]byte{255, 255, 255, 255})
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := readMessage(bytes.NewReader(data))
		if err != nil {
			return
		}
		if p := m.Read; p != nil && (p.Offset < 0 || p.Length <= 0 || p.Length > maxPart || p.Offset+p.Length > p.Segment.Size) || m.Bytes < 0 || m.Bytes > maxPart {
			t.Errorf("taken: %+v", m)
		}
		var out bytes.Buffer
		if err := writeMessage(&out, m); err != nil {
			return // JSON that escapes more than what was read
		}
		if _, err := readMessage(&out); err != nil {
			t.Errorf("%+v: %v", m, err)
		}
	})
}
