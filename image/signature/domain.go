package signature

import (
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// DockerDomain is the canonical name of Docker's registry.
const DockerDomain = "docker.io"

// docker are its other names.
var docker = map[string]bool{"index.docker.io": true, "registry-1.docker.io": true, "registry.docker.io": true, "registry.hub.docker.com": true}

// CanonicalDomain returns the one name by which a registry is compared: in lower case (RFC 4343), IP addresses as [netip.Addr] writes them and IPv6 in brackets, without the port
// 443, which is that of a registry that names none, and docker.io for Docker's registry. It returns a name that is none in lower case.
func CanonicalDomain(name string) string {
	host, port := SplitDomain(strings.ToLower(name))
	host = strings.TrimSuffix(host, ".")
	if n, err := strconv.ParseUint(port, 10, 16); err == nil {
		port = strconv.FormatUint(n, 10)
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		host = ip.Unmap().String()
	}
	if port == "443" {
		port = ""
	}
	if docker[host] && port == "" {
		return DockerDomain
	}
	return JoinDomain(host, port)
}

// SplitDomain splits a name into host and port. The host is without brackets; the port is empty if the name has none.
func SplitDomain(name string) (host, port string) {
	if host, port, err := net.SplitHostPort(name); err == nil {
		return host, port
	}
	return strings.TrimSuffix(strings.TrimPrefix(name, "["), "]"), ""
}

// JoinDomain is the reverse of [SplitDomain].
func JoinDomain(host, port string) string {
	switch {
	case port != "":
		return net.JoinHostPort(host, port)
	case strings.Contains(host, ":"):
		return "[" + host + "]"
	}
	return host
}

// DomainOf returns the canonical name of the registry of a normalised reference; empty: it is a digest alone.
func DomainOf(ref string) string {
	name, _, _ := strings.Cut(ref, "@")
	host, _, ok := strings.Cut(name, "/")
	if !ok {
		return ""
	}
	return CanonicalDomain(host)
}

// RepositoryOf returns the registry, by its canonical name, and the path of a normalised reference; empty: it is a digest alone.
func RepositoryOf(ref string) string {
	name, _, _ := strings.Cut(ref, "@")
	_, path, ok := strings.Cut(name, "/")
	if !ok {
		return ""
	}
	path, _, _ = strings.Cut(path, ":")
	return DomainOf(ref) + "/" + path
}

// CanonicalPrefix returns the canonical form of a prefix of repositories: a registry, or one with the beginning of a path.
func CanonicalPrefix(prefix string) string {
	host, path, ok := strings.Cut(prefix, "/")
	if !ok {
		return CanonicalDomain(host)
	}
	return CanonicalDomain(host) + "/" + path
}
