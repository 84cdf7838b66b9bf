package registry

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"oras.land/oras-go/v2/registry/remote/retry"

	"github.com/cryo-project/cryo/image/format"
	"github.com/cryo-project/cryo/image/store"
)

// timing is when to give up or try again; the zero value means the default.
type timing struct {
	wait     time.Duration // before the first repetition, doubled each time
	maxWait  time.Duration
	attempts int           // repetitions without any progress
	idle     time.Duration // a connection on which nothing moves is dead
	rest     time.Duration // see mirrorRest
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

// before is how long to wait before repetition n (from 0), at least as long as the server asked for.
func (t timing) before(n int, asked time.Duration) time.Duration {
	wait := min(t.wait<<min(n, 16), t.maxWait)
	return max(wait/2+rand.N(wait/2+1), min(asked, time.Minute))
}

// pause waits before repetition n.
func (t timing) pause(ctx context.Context, n int) error {
	timer := time.NewTimer(t.before(n, 0))
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

// transport repeats requests that failed for a reason that may pass, but for uploads of blobs: what became of the first attempt must be asked first. No other code repeats a single request.
// Decision: the loops above it stay apart, since each does more than to repeat. [repo.upload] first asks whether the registry has the blob by now. A [blobReader] asks for the missing
// bytes, with a token that may be newer. [repo.manifest] and [repo.complete] start again after a wrong digest. One client that resumes all answers took 110 lines more, and oras-go
// keeps bodies for another attempt only for its own client type.
type transport struct {
	again, once http.RoundTripper
}

// bounded counts what documents of a registry have, such as manifests, lists of referrers, and tokens, before others build something of them.
type bounded struct{ by http.RoundTripper }

// RoundTrip implements [http.RoundTripper].
func (b bounded) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := b.by.RoundTrip(req)
	asked := req // before redirects
	for asked.Response != nil && asked.Response.Request != nil {
		asked = asked.Response.Request
	}
	if err != nil || strings.Contains(asked.URL.Path, "/blobs/") || !strings.Contains(strings.ToLower(resp.Header.Get("Content-Type")), "json") {
		return resp, err
	}
	resp.Body = &document{format.ManifestJSON.Reader(resp.Body)}
	return resp, nil
}

// document has errors for users.
type document struct{ io.ReadCloser }

// Read implements [io.Reader].
func (d *document) Read(p []byte) (int, error) {
	n, err := d.ReadCloser.Read(p)
	if errors.Is(err, format.ErrJSONLimit) {
		err = ours{store.Corrupt("an answer of the registry", err)}
	}
	return n, err
}

// newTransport repeats what is sent by base. Uploads go by slow, which waits longer: a registry may have to hash for minutes before it answers.
func newTransport(base, slow http.RoundTripper, timing timing, o Options) *transport {
	p := &policy{timing: timing, counts: o.Counts}
	p.spoken.Store(o.Patient)
	base, slow = bounded{base}, bounded{slow}
	return &transport{
		again: &retry.Transport{Base: traced(base, o.Trace), Policy: func() retry.Policy { return p }},
		once:  traced(slow, o.Trace),
	}
}

// RoundTrip implements [http.RoundTripper]. What cannot be read again is the body of an upload; to cancel one is not worth a repetition.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method == http.MethodPut && req.GetBody == nil || req.Method == http.MethodDelete {
		return t.once.RoundTrip(req)
	}
	return t.again.RoundTrip(req)
}

// traced tells of each request; see [Options].
func traced(by http.RoundTripper, trace func(Request)) http.RoundTripper {
	if trace == nil {
		return by
	}
	return &tracing{by, trace}
}

type tracing struct {
	by    http.RoundTripper
	trace func(Request)
}

// RoundTrip implements [http.RoundTripper].
func (t *tracing) RoundTrip(req *http.Request) (*http.Response, error) {
	start := time.Now()
	resp, err := t.by.RoundTrip(req)
	u := *req.URL
	u.RawQuery, u.User = "", nil
	r := Request{Method: req.Method, URL: u.String(), Took: time.Since(start), Err: err}
	if err == nil {
		r.Status = resp.StatusCode
	}
	t.trace(r)
	return resp, err
}

// policy says what is repeated, and when.
type policy struct {
	timing timing
	counts *Counts
	spoken atomic.Bool // the host has answered once
}

// Retry implements [retry.Policy].
func (p *policy) Retry(n int, resp *http.Response, err error) (time.Duration, error) {
	const never = -1
	if err == nil {
		p.spoken.Store(true)
	}
	switch {
	case n >= p.timing.attempts:
		return never, nil
	case err != nil && (!temporary(err) || !p.spoken.Load() && n >= firstContact):
		return never, nil
	case err == nil && !temporaryStatus(resp.StatusCode):
		return never, nil
	}
	p.counts.add(0, 0, 1)
	if err != nil {
		return p.timing.before(n, 0), nil
	}
	return p.timing.before(n, retryAfter(resp)), nil
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
