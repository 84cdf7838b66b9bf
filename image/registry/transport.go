package registry

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/spec/failure"
)

// timing is when to give up or try again; the zero value means the default.
type timing struct {
	wait     time.Duration // before the first repetition, doubled each time
	maxWait  time.Duration
	attempts int           // repetitions without any progress
	idle     time.Duration // a connection on which nothing moves is dead
}

func (t timing) withDefaults() timing {
	if t.wait == 0 {
		t.wait = 250 * time.Millisecond
	}
	if t.maxWait == 0 {
		t.maxWait = 5 * time.Second
	}
	if t.attempts == 0 {
		t.attempts = 6
	}
	if t.idle == 0 {
		t.idle = time.Minute
	}
	return t
}

// pause waits before repetition n (from 0), at least as long as the server asked for.
func (t timing) pause(ctx context.Context, n int, asked time.Duration) error {
	wait := min(t.wait<<min(n, 16), t.maxWait)
	wait = max(wait/2+rand.N(wait/2+1), min(asked, time.Minute))
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

// firstContact is how often a refused connection is tried again where the host has never answered.
const firstContact = 2

// transport repeats requests that failed for a reason that may pass. Uploads of blobs are not repeated here: what became of the
// first attempt must be asked first.
type transport struct {
	base   http.RoundTripper // gives up on an answer after a minute
	slow   http.RoundTripper // for uploads: a registry may have to hash for minutes before it answers
	timing timing
	counts *Counts
	trace  func(Request) // see Options
	spoken atomic.Bool   // the host has answered once
}

// send sends a request once.
func (t *transport) send(by http.RoundTripper, req *http.Request) (*http.Response, error) {
	start := time.Now()
	resp, err := by.RoundTrip(req)
	if t.trace != nil {
		u := *req.URL
		u.RawQuery, u.User = "", nil
		r := Request{Method: req.Method, URL: u.String(), Took: time.Since(start), Err: err}
		if err == nil {
			r.Status = resp.StatusCode
		}
		t.trace(r)
	}
	return resp, err
}

type onceKey struct{}

// once marks requests that transport must not repeat.
func once(ctx context.Context) context.Context { return context.WithValue(ctx, onceKey{}, true) }

// RoundTrip implements [http.RoundTripper].
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx := req.Context()
	if ctx.Value(onceKey{}) != nil {
		return t.send(t.slow, req)
	}
	for n := 0; ; n++ {
		resp, err := t.send(t.base, req)
		if err == nil {
			t.spoken.Store(true)
			if err := t.wantsTLS(req, resp); err != nil {
				return nil, err
			}
		}
		if !t.again(req, resp, err, n) {
			return resp, err
		}
		var asked time.Duration
		if err == nil {
			asked = retryAfter(resp)
			_, _ = io.CopyN(io.Discard, resp.Body, 64<<10)
			resp.Body.Close()
		}
		if err := t.timing.pause(ctx, n, asked); err != nil {
			return nil, err
		}
		t.counts.add(0, 0, 1)
		if req.GetBody != nil {
			body, err := req.GetBody()
			if err != nil {
				return nil, err
			}
			req = req.Clone(ctx)
			req.Body = body
		}
	}
}

func (t *transport) again(req *http.Request, resp *http.Response, err error, n int) bool {
	if req.Context().Err() != nil || n >= t.timing.attempts {
		return false
	}
	if req.Body != nil && req.Body != http.NoBody && req.GetBody == nil {
		return false
	}
	if err == nil {
		return temporaryStatus(resp.StatusCode)
	}
	if !t.spoken.Load() && n >= firstContact {
		return false
	}
	return temporary(err)
}

// retryAfter reads the header of RFC 9110, section 10.2.3.
func retryAfter(resp *http.Response) time.Duration {
	v := resp.Header.Get("Retry-After")
	if s, err := strconv.Atoi(v); err == nil && s > 0 {
		return time.Duration(min(s, 3600)) * time.Second
	}
	if at, err := http.ParseTime(v); err == nil {
		return time.Until(at)
	}
	return 0
}

// wantsTLS recognises the answer that Go's server and nginx give to plain HTTP on a TLS port.
func (t *transport) wantsTLS(req *http.Request, resp *http.Response) error {
	if req.URL.Scheme != "http" || resp.StatusCode != http.StatusBadRequest {
		return nil
	}
	if req.Method == http.MethodHead { // the reason is in the body, which this has not
		get, err := http.NewRequestWithContext(req.Context(), http.MethodGet, req.URL.String(), nil)
		if err != nil {
			return err
		}
		if resp, err = t.send(t.base, get); err != nil || resp.StatusCode != http.StatusBadRequest {
			if err == nil {
				resp.Body.Close()
			}
			return nil
		}
		defer resp.Body.Close()
	}
	head, err := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
	if bytes.Contains(head, []byte("HTTPS server")) || bytes.Contains(head, []byte("HTTPS port")) {
		resp.Body.Close()
		return ours{failure.New(errdefs.ErrUnavailable, "leave out --plain-http", "registry %s speaks HTTPS, not plain HTTP", req.URL.Host)}
	}
	rest := io.Reader(resp.Body)
	if err != nil {
		rest = errorReader{err}
	}
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(head), rest), resp.Body}
	return nil
}

type errorReader struct{ err error }

func (r errorReader) Read([]byte) (int, error) { return 0, r.err }
