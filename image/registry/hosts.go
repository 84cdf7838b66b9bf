package registry

import (
	"context"
	"errors"
	"io/fs"
	"net/http"
	"path/filepath"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/remotes/docker/config"
	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/signature"
)

// host is a host of containerd's host configuration.
type host struct {
	docker.RegistryHost
	connections *http.Transport // as the configuration wants it: its TLS and its dialer are used
	fallsBack   bool            // to HTTP, where it speaks no TLS
}

// hosts is containerd's host configuration of a registry. The zero value names no host.
type hosts struct {
	mirrors []host
	server  *host // comes last, and may be the registry itself; nil: there is no configuration
}

// readHosts reads the configuration of a registry in directories, as PATH lists them, that contain HOST/hosts.toml or _default/hosts.toml. containerd's own library reads it, so a file
// means to cryo what it means to containerd. A file that is no TOML counts as absent, as there.
// Source: https://github.com/containerd/containerd/blob/main/docs/hosts.md
func readHosts(ctx context.Context, directories, registry string) (hosts, error) {
	for _, root := range filepath.SplitList(directories) {
		dir, err := config.HostDirFromRoot(root)(registry)
		if errdefs.IsNotFound(err) {
			continue
		}
		if err != nil {
			return hosts{}, hostsError(root, registry, err)
		}
		transports := make(map[*http.Client]*http.Transport)
		all, err := config.ConfigureHosts(ctx, config.HostOptions{
			HostDir: func(string) (string, error) { return dir, nil },
			UpdateClient: func(c *http.Client) error {
				if t, ok := c.Transport.(*http.Transport); ok {
					transports[c] = t
				}
				return nil
			},
		})(registry)
		if err != nil {
			return hosts{}, hostsError(dir, registry, err)
		}
		var h hosts
		for _, x := range all {
			t := transports[x.Client]
			h.mirrors = append(h.mirrors, host{x, t, x.Client.Transport != http.RoundTripper(t)})
		}
		if last := len(h.mirrors) - 1; last >= 0 {
			h.server, h.mirrors = &h.mirrors[last], h.mirrors[:last]
		}
		return h, nil
	}
	return hosts{}, nil
}

// hostsError returns the error that containerd's host configuration of a registry cannot be used.
func hostsError(path, registry string, err error) error {
	kind, hint := error(errdefs.ErrInvalidArgument), "mend hosts.toml, or name another directory with hosts under [registry] in cryo's configuration"
	if errors.Is(err, fs.ErrPermission) {
		kind, hint = errdefs.ErrPermissionDenied, "run cryo as root (sudo), or have a configuration of your own (CRYO_CONFIG) with another directory, or none, as hosts under [registry]"
	}
	return failure.New(kind, hint, "read containerd's configuration %s of registry %s: %w", path, registry, err)
}

// is reports whether the host is at an address and has its API where the specification says.
func (h *host) is(address string) bool {
	return signature.CanonicalDomain(h.Host) == signature.CanonicalDomain(address) && h.Path == "/v2"
}

// headers adds the headers of the configuration to requests to one host. Redirects and token services elsewhere do not get them.
type headers struct {
	by     http.RoundTripper
	host   string
	header http.Header
}

func withHeaders(by http.RoundTripper, h *host) http.RoundTripper {
	if h == nil || len(h.Header) == 0 {
		return by
	}
	return &headers{by, h.Host, h.Header}
}

// RoundTrip implements [http.RoundTripper].
func (h *headers) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Host == h.host {
		req = req.Clone(req.Context())
		for name, values := range h.header {
			if name = http.CanonicalHeaderKey(name); req.Header.Get(name) == "" || name == "User-Agent" {
				req.Header[name] = values
			}
		}
	}
	return h.by.RoundTrip(req)
}
