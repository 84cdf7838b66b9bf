package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/integration/storetest"
)

// useCores lets Go use n cores in a test, which cannot be parallel then.
func useCores(t *testing.T, n int) {
	t.Helper()
	before := runtime.GOMAXPROCS(n)
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
}

// soon waits for something that happens in the background.
func soon(t *testing.T, what string, check func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !check(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("not within a minute: " + what)
		}
	}
}

// segmentsOf are the segments of a snapshot in a store.
func segmentsOf(t *testing.T, s *store.Store, d ocispec.Descriptor) []ocispec.Descriptor {
	t.Helper()
	return manifestOf(t, s, d).Layers[2:]
}

// begun is a push of a snapshot whose segments were added, and of which nothing else is known yet.
func begun(t *testing.T, f *fake, name string, sp storetest.Spec, o Options) (*store.Store, ocispec.Descriptor, *Pusher) {
	t.Helper()
	s := storetest.Open(t)
	d := storetest.MustPut(t, s, "local:1", sp)
	p, err := NewPusher(t.Context(), s, f.ref(name), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	p.Add(segmentsOf(t, s, d)...)
	return s, d, p
}

// Segments are in the registry before anybody knows the manifest; it comes last, and nothing is sent twice.
func TestPusher(t *testing.T) {
	useCores(t, 4)
	f := newFake(t)
	o := fast()
	o.Counts = new(Counts)
	s, d, p := begun(t, f, "p:1", withSegments(1, 1, 2, 2, 3), o)
	soon(t, "segments are sent", p.Idle)
	p.Add(segmentsOf(t, s, d)...)
	if n := f.count("PUT /v2/p/blobs/"); n != 3 {
		t.Errorf("%d blobs are there, want 3", n)
	}
	if n := f.count("PUT /v2/p/manifests/"); n != 0 {
		t.Error("the manifest is there")
	}
	if err := p.Finish(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	if n := f.count("PUT /v2/p/blobs/"); n != 6 {
		t.Errorf("%d blobs were sent, want 6", n)
	}
	if last := f.log[len(f.log)-1]; !strings.HasPrefix(last, "PUT /v2/p/manifests/1 ") {
		t.Errorf("last comes %s", last)
	}
	var size int64
	for _, l := range store.Unique(append(manifestOf(t, s, d).Layers, manifestOf(t, s, d).Config)) {
		size += l.Size
	}
	if o.Counts.Moved() != size || o.Counts.There() != 0 || o.Counts.Repeated() != 0 {
		t.Errorf("counts %d moved, %d there, %d repeated; want %d, 0, 0", o.Counts.Moved(), o.Counts.There(), o.Counts.Repeated(), size)
	}
	pulled(t, f, "p:1", d)
	o.Counts = new(Counts)
	if err := Push(t.Context(), s, f.ref("p:1"), d, o); err != nil {
		t.Fatal(err)
	}
	if o.Counts.Moved() != 0 || o.Counts.There() != size {
		t.Errorf("counts %d moved, %d there; want 0, %d", o.Counts.Moved(), o.Counts.There(), size)
	}
}

// While a container stands still, CRIU has the cores; where there are few, also what packs.
func TestPusherLeavesCores(t *testing.T) {
	for _, c := range []struct{ cores, early int }{{1, 0}, {2, 0}, {3, 1}, {4, 2}, {12, 4}, {64, 4}} {
		t.Run(fmt.Sprint(c.cores), func(t *testing.T) {
			useCores(t, c.cores)
			f := newFake(t)
			arrived, leave := make(chan bool, 99), make(chan bool)
			f.fault = func(_ http.ResponseWriter, r *http.Request) bool {
				if r.Method == http.MethodPut {
					arrived <- true
					<-leave
				}
				return false
			}
			_, d, p := begun(t, f, "p:1", withSegments(1, 1, 2, 3, 4, 5, 6, 7, 8, 9), Options{certs: "/nonexistent"})
			for range c.early {
				<-arrived
			}
			time.Sleep(50 * time.Millisecond)
			if n := len(arrived); n != 0 {
				t.Errorf("%d are under way, want %d", n+c.early, c.early)
			}
			close(leave)
			if err := p.Finish(t.Context(), d); err != nil {
				t.Error(err)
			}
		})
	}
}

// Whatever the registry does meanwhile, the snapshot here is whole, Add does not wait, nothing has a name there before all of it is
// there, and a push afterwards sends the rest.
func TestPusherFails(t *testing.T) {
	t.Parallel()
	always := func(f *fake, match func(*http.Request) bool, fault func(http.ResponseWriter, *http.Request)) {
		f.fault = each(1<<30, match, fault)
	}
	cutting := func(w http.ResponseWriter, r *http.Request) { _, _ = io.CopyN(io.Discard, r.Body, 300); cut(w) }
	for name, c := range map[string]struct {
		fault func(f *fake)
		kind  func(error) bool
	}{
		"503 on HEAD":     {func(f *fake) { always(f, method("HEAD", "/blobs/"), status(503)) }, errdefs.IsUnavailable},
		"503 on POST":     {func(f *fake) { always(f, method("POST", "/blobs/"), status(503)) }, errdefs.IsUnavailable},
		"503 on PUT":      {func(f *fake) { always(f, method("PUT", "/blobs/"), status(503)) }, errdefs.IsUnavailable},
		"503 on manifest": {func(f *fake) { always(f, method("PUT", "/manifests/"), status(503)) }, errdefs.IsUnavailable},
		"cut on PUT":      {func(f *fake) { always(f, method("PUT", "/blobs/"), cutting) }, errdefs.IsUnavailable},
		"wrong password": {func(f *fake) {
			always(f, func(*http.Request) bool { return true }, status(401, "WWW-Authenticate", `Basic realm="x"`))
		}, errdefs.IsUnauthorized},
		"not allowed":  {func(f *fake) { always(f, method("POST", ""), status(403)) }, errdefs.IsPermissionDenied},
		"disk full":    {func(f *fake) { always(f, method("PUT", "/blobs/"), status(500)) }, errdefs.IsUnavailable},
		"insufficient": {func(f *fake) { always(f, method("PUT", "/blobs/"), status(507)) }, errdefs.IsFailedPrecondition},
		"too large":    {func(f *fake) { always(f, method("PUT", "/blobs/"), status(413)) }, errdefs.IsFailedPrecondition},
		"nobody there": {func(f *fake) { f.Close() }, errdefs.IsUnavailable},
		"hangs": {func(f *fake) {
			always(f, method("PUT", "/blobs/"), func(_ http.ResponseWriter, r *http.Request) { time.Sleep(2 * quick.idle); cut(nil) })
		}, errdefs.IsUnavailable},
		"dies after a blob": {func(f *fake) { f.fault = dying(2) }, errdefs.IsUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t)
			c.fault(f)
			faulty, mended := f.fault, atomic.Bool{} // requests that were given up may still be under way there
			f.fault = func(w http.ResponseWriter, r *http.Request) bool {
				return faulty != nil && !mended.Load() && faulty(w, r)
			}
			o := fast()
			o.Username, o.Password = "me", "secret"
			o.timing.attempts = 2
			sp := withSegments(1, 1, 2, 3, 4, 5, 6)
			if name == "hangs" {
				sp.Size = 8 << 20 // more than fits into buffers of sockets
				o.timing.idle = quick.idle / 2
			}
			s, d, p := begun(t, f, "p:1", sp, o)
			time.Sleep(20 * time.Millisecond) // some fail before the end, some at it
			err := p.Finish(t.Context(), d)
			var h hinter
			if !c.kind(err) || !errors.As(err, &h) || h.Hint() == "" || !strings.HasPrefix(err.Error(), "push "+f.ref("p:1")) {
				t.Errorf("error: %v", err)
			}
			f.mu.Lock()
			if len(f.manifests["p"]) != 0 {
				t.Error("the manifest was sent")
			}
			f.mu.Unlock()
			if err := storetest.Check(t.Context(), s); err != nil {
				t.Error(err)
			}
			if name == "nobody there" {
				return
			}
			mended.Store(true)
			f.mu.Lock()
			there := len(f.blobs["p"])
			f.mu.Unlock()
			var sent atomic.Int64 // not what the registry counts: requests that were given up may still arrive there
			again := fast()
			again.Trace = func(r Request) {
				if r.Method == http.MethodPut && strings.Contains(r.URL, "/v2/p/blobs/") {
					sent.Add(1)
				}
			}
			if err := Push(t.Context(), s, f.ref("p:1"), d, again); err != nil {
				t.Fatal(err)
			}
			if n := int(sent.Load()); n > 9-there {
				t.Errorf("%d blobs were sent although %d of 9 were there", n, there)
			}
			pulled(t, f, "p:1", d)
		})
	}
}

// dying is a registry that ends after it has got n blobs.
func dying(n int) func(http.ResponseWriter, *http.Request) bool {
	living := make(chan bool, n)
	return func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodPut {
			return false
		}
		select {
		case living <- true:
			return false
		default:
			cut(w)
			return true
		}
	}
}

// A checkpoint that fails, or is interrupted, ends the push at once.
func TestPusherGivenUp(t *testing.T) {
	t.Parallel()
	useCores(t, 4)
	for _, how := range []string{"closed", "interrupted"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			f := newFake(t)
			arrived := make(chan bool, 99)
			f.fault = func(_ http.ResponseWriter, r *http.Request) bool {
				if r.Method != http.MethodPut {
					return false
				}
				arrived <- true
				_, _ = io.Copy(io.Discard, r.Body)
				<-r.Context().Done()
				return true
			}
			s := storetest.Open(t)
			d := storetest.MustPut(t, s, "local:1", withSegments(1, 1, 2, 3))
			ctx, cancel := context.WithCancelCause(t.Context())
			p, err := NewPusher(ctx, s, f.ref("p:1"), Options{certs: "/nonexistent"})
			if err != nil {
				t.Fatal(err)
			}
			p.Add(segmentsOf(t, s, d)...)
			<-arrived
			start, reason := time.Now(), errors.New("enough")
			if how == "interrupted" {
				cancel(reason)
				if err := p.Finish(ctx, d); !errors.Is(err, reason) {
					t.Error(err)
				}
			}
			p.Close()
			if took := time.Since(start); took > 20*time.Second {
				t.Errorf("it took %s", took)
			}
			if len(f.manifests["p"]) != 0 {
				t.Error("the manifest was sent")
			}
			cancel(nil)
		})
	}
}

// A registry says before anything is sent whether it lets us push, and keeps no upload for that.
func TestPusherAllowed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		status int
		is     func(error) bool
	}{
		"yes":              {0, func(err error) bool { return err == nil }},
		"wrong password":   {http.StatusUnauthorized, errdefs.IsUnauthorized},
		"reading only":     {http.StatusForbidden, errdefs.IsPermissionDenied},
		"a broken service": {http.StatusInternalServerError, errdefs.IsUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t)
			f.fault = func(w http.ResponseWriter, r *http.Request) bool {
				if c.status == 0 || r.Method != http.MethodPost {
					return false
				}
				refuse(w, c.status, "UNKNOWN")
				return true
			}
			p, err := NewPusher(t.Context(), storetest.Open(t), f.ref("p:1"), fast())
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			if err := p.Allowed(t.Context()); !c.is(err) {
				t.Errorf("it says %v", err)
			}
			if f.uploads != 0 || f.count("PUT") != 0 {
				t.Errorf("%d uploads are left, %d requests sent something", f.uploads, f.count("PUT"))
			}
		})
	}
}

// Where nobody answers, that is said.
func TestPusherAllowedByNobody(t *testing.T) {
	f := newFake(t)
	ref := f.ref("p:1")
	f.Close()
	p, err := NewPusher(t.Context(), storetest.Open(t), ref, fast())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := p.Allowed(t.Context()); !errdefs.IsUnavailable(err) {
		t.Errorf("it says %v", err)
	}
}
