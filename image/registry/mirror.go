package registry

import (
	"cmp"
	"context"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/opencontainers/go-digest"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"

	"github.com/cryo-project/cryo/image/signature"
)

// How long a mirror may take, and for how long it is left out after it has failed. A process of a restored container may wait for each request.
const (
	mirrorConnect = 5 * time.Second  // to connect; dial_timeout may say less
	mirrorAnswer  = 15 * time.Second // to answer, or to send on
	mirrorRest    = 30 * time.Second // that a failed mirror is not asked; each further failure doubles it, [mirrorDoubled] times at most
	mirrorDoubled = 5
)

// mirror is a host that is asked for what is in a registry.
type mirror struct {
	host
	namespace  string // the registry's name, for the parameter ns; empty: the host is the registry itself
	repository string
	client     *auth.Client
	transport  *http.Transport
	resting    time.Duration // see mirrorRest

	mu    sync.Mutex
	until time.Time       // it is left out for all requests before; guarded by mu
	fails int             // how often it has failed since its last answer of use; guarded by mu
	not   map[string]bool // tags and digests for which it is left out; guarded by mu
	sent  map[string]bool // digests of which it has sent bytes; guarded by mu
}

// mirrored is the client of a repository that is only read: it asks the mirrors in their order, and then the registry, whose answer is the last.
type mirrored struct {
	mirrors  []*mirror
	registry remote.Client
	path     string // of the repository in the registry's API, with a slash at its end
}

var _ remote.Client = (*mirrored)(nil)

// readByMirrors has what is read of the repository come from the mirrors that containerd's configuration names.
func (r *repo) readByMirrors(o Options, certs string) error {
	last := r.hosts.server
	if last == nil {
		return nil
	}
	c := &mirrored{registry: r.client, path: "/v2/" + r.ref.Repository + "/"}
	for _, h := range r.hosts.mirrors {
		m, err := r.newMirror(h, o, certs, false)
		if err != nil {
			return err
		}
		c.mirrors = append(c.mirrors, m)
	}
	if !last.is(r.ref.Host()) {
		m, err := r.newMirror(*last, o, certs, true)
		if err != nil {
			return err
		}
		c.registry, r.manager.Client, r.other = m, m, m
	}
	if len(c.mirrors) > 0 || r.other != nil {
		r.client, r.mirrors = c, c.mirrors
	}
	return nil
}

// newMirror prepares to ask a host. server: it takes the registry's place, and is asked as patiently.
func (r *repo) newMirror(h host, o Options, certs string, server bool) (*mirror, error) {
	conf, err := tlsConfig(h.Host, certs, Options{}, h.connections.TLSClientConfig)
	if err != nil {
		return nil, err
	}
	m := &mirror{host: h, repository: r.ref.Repository, resting: cmp.Or(o.timing.rest, mirrorRest), not: make(map[string]bool), sent: make(map[string]bool)}
	given := Options{DockerConfig: o.DockerConfig}
	if h.is(r.ref.Host()) {
		given = o
	} else {
		m.namespace = r.ref.Registry
	}
	credential, err := r.credentials(given, new(atomic.Value))
	if err != nil {
		return nil, err
	}
	timing, answer := r.timing, r.timing.idle
	if !server {
		timing.attempts, answer = 0, min(answer, mirrorAnswer)
	}
	near := newReach(h.Host, h.Scheme)
	m.transport = connections(conf, o, answer, answer, near)
	m.transport.DialContext = dialing(m.transport.DialContext, h.connections.DialContext, near, answer)
	var by http.RoundTripper = m.transport
	if h.fallsBack {
		by = docker.NewHTTPFallback(by)
	}
	by = withHeaders(by, &h)
	m.client = &auth.Client{Client: &http.Client{Transport: newTransport(by, by, timing, o)}, Credential: credential, Cache: auth.NewCache(), ClientID: "cryo"}
	m.client.SetUserAgent("cryo")
	return m, nil
}

// dialer connects.
type dialer func(ctx context.Context, network, address string) (net.Conn, error)

// dialing connects to the mirror's own address as containerd's configuration says, within [mirrorConnect], and to where it sends us by other.
func dialing(other, own dialer, near *reach, answer time.Duration) dialer {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		to := signature.CanonicalDomain(address)
		if to != near.address {
			return other(ctx, network, address)
		}
		ctx, cancel := context.WithTimeout(ctx, mirrorConnect)
		defer cancel()
		c, err := own(ctx, network, address)
		if err != nil {
			return nil, err
		}
		if at, err := netip.ParseAddrPort(c.RemoteAddr().String()); err == nil {
			if err := near.judge(to, nearness(at.Addr()), at.Addr().String()); err != nil {
				c.Close()
				return nil, err
			}
		}
		return &conn{Conn: c, answer: answer, idle: answer}, nil
	}
}

// Do sends a request to the registry, or, if it reads a manifest or a blob, to the first mirror that has an answer of use.
func (c *mirrored) Do(req *http.Request) (*http.Response, error) {
	kind, reference, ok := strings.Cut(strings.TrimPrefix(req.URL.Path, c.path), "/")
	if !ok || !strings.HasPrefix(req.URL.Path, c.path) || kind != "blobs" && kind != "manifests" || req.Method != http.MethodGet && req.Method != http.MethodHead {
		return c.registry.Do(req)
	}
	for _, m := range c.mirrors {
		if !m.serves(reference) || req.Context().Err() != nil {
			continue
		}
		if resp := m.ask(req, kind, reference); resp != nil {
			return resp, nil
		}
	}
	return c.registry.Do(req)
}

// serves reports whether the mirror is asked for a tag or a digest.
func (m *mirror) serves(reference string) bool {
	need := docker.HostCapabilityResolve
	if isDigest(reference) {
		need = docker.HostCapabilityPull
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.Capabilities.Has(need) && !m.not[reference] && !time.Now().Before(m.until)
}

func isDigest(reference string) bool { return digest.Digest(reference).Validate() == nil }

// ask sends a request to the mirror. nil: the next host is to be asked.
func (m *mirror) ask(req *http.Request, kind, reference string) *http.Response {
	resp, err := m.Do(req)
	if err != nil {
		if req.Context().Err() == nil {
			m.rest()
		}
		return nil
	}
	switch status := resp.StatusCode; {
	case useful(req, resp, kind, reference):
		m.mu.Lock()
		defer m.mu.Unlock()
		m.sent[reference], m.fails = true, 0
		resp.Body = &mirrorBody{resp.Body, m, reference}
		return resp
	case status == http.StatusUnauthorized, status == http.StatusForbidden, status >= http.StatusInternalServerError, temporaryStatus(status):
		m.rest()
	default:
		m.leaveOut(reference)
	}
	resp.Body.Close()
	return nil
}

// useful reports whether an answer is of use as far as its head says.
func useful(req *http.Request, resp *http.Response, kind, reference string) bool {
	if req.Header.Get("Range") != "" {
		return resp.StatusCode == http.StatusPartialContent
	}
	if kind == "manifests" && req.Method == http.MethodHead {
		got := digest.Digest(resp.Header.Get("Docker-Content-Digest"))
		if got.Validate() != nil || isDigest(reference) && got.String() != reference || resp.ContentLength < 0 {
			return false
		}
	}
	return resp.StatusCode == http.StatusOK
}

// Do sends a request that is meant for the registry to the host. It implements [remote.Client] for a host that takes the registry's place.
func (m *mirror) Do(req *http.Request) (*http.Response, error) {
	u := *req.URL
	u.Scheme, u.Host, u.Path, u.RawPath = m.Scheme, m.Host, m.Path+strings.TrimPrefix(req.URL.Path, "/v2"), ""
	if m.namespace != "" {
		q, err := url.ParseQuery(u.RawQuery)
		if err != nil {
			return nil, err
		}
		q.Set("ns", m.namespace)
		u.RawQuery = q.Encode()
	}
	out := req.Clone(auth.AppendScopesForHost(req.Context(), m.Host, auth.ScopeRepository(m.repository, auth.ActionPull)))
	out.URL, out.Host = &u, ""
	return m.client.Do(out)
}

// rest leaves the mirror out for a while. Requests that were under way together fail together, and count once.
func (m *mirror) rest() {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	if now.Before(m.until) {
		return
	}
	m.until = now.Add(m.resting << min(m.fails, mirrorDoubled))
	m.fails++
}

// leaveOut leaves the mirror out for a tag or a digest.
func (m *mirror) leaveOut(reference string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.not[reference] = true
}

// mirrorBody is the body of a mirror's answer.
type mirrorBody struct {
	io.ReadCloser
	mirror    *mirror
	reference string
}

// wrong reports whether a mirror has sent an answer. It is left out for what it was asked for: the answer is of no use.
func wrong(body io.ReadCloser) bool {
	b, ok := body.(*mirrorBody)
	if ok {
		b.mirror.leaveOut(b.reference)
	}
	return ok
}

// broken reports whether a mirror has sent a body, which has ended too early. The mirror is left out for a while.
func broken(body io.ReadCloser) bool {
	b, ok := body.(*mirrorBody)
	if ok {
		b.mirror.rest()
	}
	return ok
}

// distrust leaves out, for a blob, all mirrors that have sent bytes of it, since it is damaged. It reports whether that changes anything: if so, the registry has not sent it all.
func (r *repo) distrust(d digest.Digest) (changed bool) {
	for _, m := range r.mirrors {
		m.mu.Lock()
		if m.sent[d.String()] && !m.not[d.String()] {
			m.not[d.String()], changed = true, true
		}
		m.mu.Unlock()
	}
	return changed
}

// MirrorError reports that a mirror has sent another blob than the one with this digest. The next request for the blob goes to another host.
type MirrorError struct {
	Digest    digest.Digest
	MediaType string // as the image has it
}

func (e *MirrorError) Error() string {
	return "a mirror has sent another blob than " + e.Digest.String()
}
