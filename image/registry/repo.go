package registry

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/registry"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/credentials"

	"github.com/cryo-project/cryo/image/signature"
	"github.com/cryo-project/cryo/image/store"
)

// repo is one repository of a registry.
type repo struct {
	name    string             // the reference as normalised
	ref     registry.Reference // host, repository, and tag, digest or nothing
	scheme  string
	client  remote.Client   // for what is read, by mirrors too
	base    *http.Transport // gives up on an answer after a minute
	slow    *http.Transport // for uploads: a registry may have to hash for minutes before it answers
	near    *reach
	timing  timing
	line    *scheduler         // between what a reader waits for and the rest
	manager *remote.Repository // manifests and referrers
	asUser  *atomic.Value      // string
	hosts   hosts              // of containerd's configuration
	mirrors []*mirror          // of a repository that is only read
	other   *mirror            // takes the registry's place; nil: none does
}

// user is the name that we told the registry.
func (r *repo) user() string {
	u, _ := r.asUser.Load().(string)
	return u
}

// parse splits a reference.
func parse(ref string) (string, registry.Reference, error) {
	full, err := store.Normalize(ref)
	if err != nil {
		return "", registry.Reference{}, err
	}
	if digest.Digest(full).Validate() == nil {
		return "", registry.Reference{}, store.InvalidRef(ref, errors.New("a digest alone names no repository"))
	}
	at, err := registry.ParseReference(full)
	if err != nil {
		return "", registry.Reference{}, store.InvalidRef(ref, err)
	}
	return full, at, nil
}

// connect is open for a reference as a user writes it, to do something with it.
func connect(ctx context.Context, what, ref string, o Options) (*repo, error) {
	name, at, err := parse(ref)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	r, err := open(ctx, name, at, o)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", what, ref, err)
	}
	return r, nil
}

// connectToRead is connect for a repository that is only read, by mirrors where there are some. Decision: pushes and signing go to the registry alone, whatever capability a mirror has: the
// snapshot must be where its name says for hosts without the mirror, and what a push leaves out depends on what the registry has.
func connectToRead(ctx context.Context, what, ref string, o Options) (*repo, error) {
	r, err := connect(ctx, what, ref, o)
	if err != nil {
		return nil, err
	}
	if err := r.readByMirrors(o, cmp.Or(o.certs, dockerCerts)); err != nil {
		r.close()
		return nil, fmt.Errorf("%s %s: %w", what, ref, err)
	}
	return r, nil
}

// elsewhere returns the repository of a reference to the same registry, unless it is this one; empty: it is of another.
func (r *repo) elsewhere(ref string) string {
	_, at, err := parse(ref)
	if err != nil || signature.CanonicalDomain(at.Registry) != signature.CanonicalDomain(r.ref.Registry) || at.Repository == r.ref.Repository {
		return ""
	}
	return at.Repository
}

// open prepares to speak to the registry of ref. Only a loopback address is contacted here.
func open(ctx context.Context, name string, ref registry.Reference, o Options) (*repo, error) {
	h, err := readHosts(ctx, o.Hosts, ref.Registry)
	if err != nil {
		return nil, err
	}
	plain, own := o.PlainHTTP, h.server
	if own != nil && !own.is(ref.Host()) {
		own = nil
	}
	var base *tls.Config
	if own != nil {
		base = own.connections.TLSClientConfig.Clone()
		if isLoopback(ref.Host()) {
			base.InsecureSkipVerify = false // which containerd does there without being told
		} else if own.Scheme == "http" && o.NamedBy == "" {
			plain = true
		}
	}
	conf, err := tlsConfig(ref.Registry, cmp.Or(o.certs, dockerCerts), o, base)
	if err != nil {
		return nil, err
	}
	r := &repo{name: name, ref: ref, hosts: h, timing: o.timing.withDefaults(), line: &scheduler{streams: int64(o.concurrency())}, asUser: new(atomic.Value)}
	credential, err := r.credentials(o, r.asUser)
	if err != nil {
		return nil, err
	}
	if !plain && o.NamedBy == "" && isLoopback(ref.Host()) {
		plain = !speaksTLS(ctx, ref.Host())
	}
	r.scheme = "https"
	if plain {
		r.scheme = "http"
	}
	r.near = newReach(ref.Host(), r.scheme)
	if o.NamedBy != "" {
		r.near.limit, r.near.namedBy = farthest(ctx, signature.DomainOf(o.NamedBy)), o.NamedBy
	}
	r.base, r.slow = connections(conf, o, r.timing.idle, r.timing.idle, r.near), connections(conf, o, 15*r.timing.idle, r.timing.idle, r.near)
	client := &auth.Client{
		Client:     &http.Client{Transport: newTransport(withHeaders(r.base, own), withHeaders(r.slow, own), r.timing, o)},
		Credential: credential,
		Cache:      auth.NewCache(),
		ClientID:   "cryo",
	}
	client.SetUserAgent("cryo")
	r.client = client
	// Registries often cannot delete, and what another writer put there meanwhile must stay: SkipReferrersGC.
	r.manager = &remote.Repository{Client: client, Reference: ref, PlainHTTP: plain, SkipReferrersGC: true, MaxMetadataBytes: store.MaxManifest, ReferrerListMaxPages: referrerPages}
	return r, nil
}

// credentials returns the source of user names and passwords, each for its host. It notes the user name in user.
func (r *repo) credentials(o Options, user *atomic.Value) (auth.CredentialFunc, error) {
	get := func(_ context.Context, host string) (auth.Credential, error) {
		if signature.CanonicalDomain(host) != signature.CanonicalDomain(r.ref.Registry) {
			return auth.EmptyCredential, nil
		}
		return auth.Credential{Username: o.Username, Password: o.Password}, nil
	}
	if o.Username == "" && o.Password == "" {
		docker, err := dockerStore(o.DockerConfig)
		if err != nil {
			return nil, credentialsError(r.ref.Registry, err)
		}
		get = byAnyName(credentials.Credential(docker))
	}
	return func(ctx context.Context, host string) (auth.Credential, error) {
		c, err := get(ctx, host)
		if err != nil {
			return c, ours{credentialsError(host, err)}
		}
		if c.Username != "" {
			user.Store(c.Username)
		}
		return c, nil
	}, nil
}

// byAnyName looks for a registry by each of its names: docker login notes the one that was typed.
func byAnyName(get auth.CredentialFunc) auth.CredentialFunc {
	return func(ctx context.Context, name string) (auth.Credential, error) {
		names := []string{name, signature.CanonicalDomain(name)}
		if host, port := signature.SplitDomain(names[1]); port == "" {
			names = append(names, signature.JoinDomain(host, "443"))
		}
		for i, n := range names {
			if slices.Contains(names[:i], n) {
				continue
			}
			if c, err := get(ctx, n); err != nil || c != auth.EmptyCredential {
				return c, err
			}
		}
		return auth.EmptyCredential, nil
	}
}

// dockerStore opens the credentials that a file in the form of Docker's config.json has or names; empty: Docker's own.
func dockerStore(file string) (credentials.Store, error) {
	if file != "" {
		return credentials.NewStore(file, credentials.StoreOptions{})
	}
	return credentials.NewStoreFromDocker(credentials.StoreOptions{})
}

// connections are those to a registry, and to where it sends us; see [conn]. HTTP/1.1 only: many connections move many large blobs faster than one.
func connections(conf *tls.Config, o Options, answer, idle time.Duration, near *reach) *http.Transport {
	return &http.Transport{
		Proxy: near.proxy(http.ProxyFromEnvironment),
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			dialer := &net.Dialer{Timeout: 15 * time.Second, KeepAlive: 15 * time.Second, Control: near.control(address)}
			c, err := dialer.DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return &conn{Conn: c, answer: answer, idle: idle}, nil
		},
		TLSClientConfig:     conf.Clone(),
		TLSNextProto:        map[string]func(string, *tls.Conn) http.RoundTripper{},
		TLSHandshakeTimeout: 15 * time.Second,
		MaxIdleConnsPerHost: o.concurrency(),
		IdleConnTimeout:     30 * time.Second,
		DisableCompression:  true,
		WriteBufferSize:     64 << 10,
		ReadBufferSize:      64 << 10,
	}
}

// close drops idle connections.
func (r *repo) close() {
	r.base.CloseIdleConnections()
	r.slow.CloseIdleConnections()
	for _, m := range r.mirrors {
		m.transport.CloseIdleConnections()
	}
	if r.other != nil {
		r.other.transport.CloseIdleConnections()
	}
}

// isLoopback follows Docker, which takes registries on loopback addresses without TLS.
func isLoopback(hostport string) bool {
	host, _ := signature.SplitDomain(signature.CanonicalDomain(hostport))
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// speaksTLS tries a handshake.
func speaksTLS(ctx context.Context, hostport string) bool {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	host, port := signature.SplitDomain(hostport)
	hostport = net.JoinHostPort(host, cmp.Or(port, "443"))
	// Nothing is sent over this connection: it only tells TLS from HTTP.
	d := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, ServerName: host}}
	c, err := d.DialContext(ctx, "tcp", hostport)
	if err == nil {
		c.Close()
		return true
	}
	var alert tls.AlertError
	return errors.As(err, &alert) // it speaks TLS and does not like ours
}

// url of something in the repository.
func (r *repo) url(kind, name string) string {
	return r.scheme + "://" + r.ref.Host() + "/v2/" + r.ref.Repository + "/" + kind + "/" + name
}

// scoped asks for tokens that are good for all that follows.
func (r *repo) scoped(ctx context.Context, actions ...string) context.Context {
	return auth.AppendRepositoryScope(ctx, r.ref, actions...)
}

// do sends a request without a body.
func (r *repo) do(ctx context.Context, method, url string, header http.Header) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return nil, err
	}
	for k, v := range header {
		req.Header[k] = v
	}
	return r.client.Do(req)
}

// hasBlob asks whether the registry has a blob.
func (r *repo) hasBlob(ctx context.Context, d ocispec.Descriptor) (bool, error) {
	resp, err := r.do(ctx, http.MethodHead, r.url("blobs", d.Digest.String()), nil)
	if err != nil {
		return false, err
	}
	switch resp.StatusCode {
	case http.StatusOK:
		resp.Body.Close()
		if resp.ContentLength != d.Size && wrong(resp.Body) {
			return r.hasBlob(ctx, d)
		}
		return resp.ContentLength < 0 || resp.ContentLength == d.Size, nil
	case http.StatusNotFound:
		resp.Body.Close()
		return false, nil
	}
	return false, answerError(resp)
}
