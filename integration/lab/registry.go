package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// User and Password are what every registry with authentication wants.
const (
	User     = "cryo"
	Password = "open sesame"
)

// Auth says how a registry asks who is there.
type Auth int

// The kinds of authentication.
const (
	Anonymous Auth = iota
	Basic          // htpasswd
	Token          // a token service, see the distribution specification's authentication
)

// RegistryOptions differ between registries. The zero value speaks plain HTTP with everybody.
type RegistryOptions struct {
	TLS  bool
	Auth Auth
	// AnyIndex takes indexes of what are no manifests, as those of containerd's checkpoints.
	AnyIndex bool
	Host     *Host // runs on that host's loopback instead of on the lab's bridge
}

// Registry is a distribution registry.
type Registry struct {
	Name    string
	Dir     string // data/ holds what was pushed
	Address string // host:port, the first part of references
	CA      string // file with the certificate authority, "" without TLS

	options RegistryOptions
	lab     *Lab
	tokens  *tokenService
	command *exec.Cmd
	done    chan struct{}
}

// Registry starts a registry.
func (l *Lab) Registry(ctx context.Context, name string, o RegistryOptions) (*Registry, error) {
	ip := l.Address()
	if o.Host != nil {
		ip = "127.0.0.1"
	}
	port, err := l.freePort()
	if err != nil {
		return nil, err
	}
	r := &Registry{Name: name, Dir: filepath.Join(l.Dir, name), Address: net.JoinHostPort(ip, strconv.Itoa(port)), options: o, lab: l}
	l.mu.Lock()
	l.registries = append(l.registries, r)
	l.mu.Unlock()
	if err := r.configure(ip); err != nil {
		return nil, fmt.Errorf("configure registry %s: %w", name, err)
	}
	return r, r.Start(ctx)
}

// Reference names a repository and tag of the registry.
func (r *Registry) Reference(name string) string { return r.Address + "/" + name }

// Start starts a registry that was stopped, with the same address and content, and waits until it serves.
func (r *Registry) Start(ctx context.Context) error {
	config := filepath.Join(r.Dir, "config.yml")
	if r.options.Host != nil {
		r.command = r.options.Host.Command(context.WithoutCancel(ctx), r.lab.Tool("registry"), "serve", config)
	} else {
		r.command = r.lab.Command(context.WithoutCancel(ctx), r.lab.Tool("registry"), "serve", config)
	}
	log, err := os.OpenFile(filepath.Join(r.Dir, "registry.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open registry's log: %w", err)
	}
	defer log.Close()
	r.command.Stdout, r.command.Stderr = log, log
	r.command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	r.command.Env = append(os.Environ(), "OTEL_TRACES_EXPORTER=none")
	if err := r.command.Start(); err != nil {
		return fmt.Errorf("start registry: %w", err)
	}
	r.done = make(chan struct{})
	go func(c *exec.Cmd, done chan struct{}) {
		_ = c.Wait() // how it ended is in its log
		close(done)
	}(r.command, r.done)
	return r.serving(ctx)
}

// serving waits until the registry's port takes connections.
func (r *Registry) serving(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		select {
		case <-r.done:
			return fmt.Errorf("start registry %s: it ended:\n%s", r.Name, tail(filepath.Join(r.Dir, "registry.log"), 2000))
		case <-ctx.Done():
			return fmt.Errorf("start registry %s: %w", r.Name, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
		if r.reachable() {
			return nil
		}
	}
}

func (r *Registry) reachable() bool {
	if r.options.Host != nil { // its loopback is not ours
		return strings.Contains(tail(filepath.Join(r.Dir, "registry.log"), 10000), "listening on "+r.Address)
	}
	conn, err := net.DialTimeout("tcp", r.Address, time.Second)
	if err != nil {
		return false
	}
	return conn.Close() == nil
}

// Pid is that of the registry's process, which may have ended.
func (r *Registry) Pid() int { return r.command.Process.Pid }

// Stop ends the registry's process; its content stays.
func (r *Registry) Stop() error {
	if r.command == nil || r.command.Process == nil {
		return nil
	}
	err := r.command.Process.Kill()
	if errors.Is(err, os.ErrProcessDone) {
		err = nil
	}
	<-r.done
	return err
}

// configure writes the registry's configuration, see https://distribution.github.io/distribution/about/configuration/.
func (r *Registry) configure(ip string) error {
	if err := os.MkdirAll(filepath.Join(r.Dir, "data"), 0o700); err != nil {
		return err
	}
	config := fmt.Sprintf("version: 0.1\nlog: {level: info, accesslog: {disabled: false}}\n"+
		"storage: {filesystem: {rootdirectory: %q}, delete: {enabled: true}}\nhttp:\n  addr: %q\n  secret: lab\n",
		filepath.Join(r.Dir, "data"), r.Address)
	var cert, key string
	if r.options.TLS {
		var err error
		if cert, key, err = r.writeCertificate(ip); err != nil {
			return err
		}
		config += fmt.Sprintf("  tls: {certificate: %q, key: %q}\n", cert, key)
	}
	if r.options.AnyIndex {
		config += "validation: {manifests: {indexes: {platforms: none}}}\n"
	}
	switch r.options.Auth {
	case Basic:
		path := filepath.Join(r.Dir, "htpasswd")
		if err := os.WriteFile(path, []byte(htpasswd), 0o600); err != nil {
			return err
		}
		config += fmt.Sprintf("auth: {htpasswd: {realm: lab, path: %q}}\n", path)
	case Token:
		tokens, err := startTokenService(r.Dir, r.lab.Address(), cert, key)
		if err != nil {
			return err
		}
		r.tokens = tokens
		config += fmt.Sprintf("auth: {token: {realm: %q, service: lab, issuer: lab, rootcertbundle: %q, signingalgorithms: [ES256]}}\n",
			tokens.url, tokens.certificate)
	}
	return os.WriteFile(filepath.Join(r.Dir, "config.yml"), []byte(config), 0o600)
}

// Get fetches a path such as "/v2/" with the lab's credentials, for assertions on what the registry holds.
func (r *Registry) Get(ctx context.Context, path, accept string) (*http.Response, error) {
	scheme := "http://"
	if r.options.TLS {
		scheme = "https://"
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+r.Address+path, nil)
	if err != nil {
		return nil, err
	}
	request.SetBasicAuth(User, Password)
	request.Header.Set("Accept", accept)
	client := http.Client{}
	if r.options.TLS {
		client.Transport = &http.Transport{TLSClientConfig: trust(r.CA), DisableKeepAlives: true}
	}
	return client.Do(request)
}

// freePort is a port nobody listens on and no registry of the lab has, outside the range of ports given to clients.
func (l *Lab) freePort() (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	taken := map[string]bool{}
	for _, r := range l.registries {
		_, port, _ := net.SplitHostPort(r.Address)
		taken[port] = true
	}
	for port := 5000; port < 5200; port++ {
		if taken[strconv.Itoa(port)] {
			continue // stopped, or on the loopback of a host
		}
		listener, err := net.Listen("tcp", net.JoinHostPort(l.Address(), strconv.Itoa(port)))
		if err == nil {
			return port, listener.Close()
		}
	}
	return 0, fmt.Errorf("find a free port on %s: none between 5000 and 5199", l.Address())
}
