package registry

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/integration/storetest"
)

// basic lets alice in.
func basic(w http.ResponseWriter, r *http.Request) bool {
	if u, p, ok := r.BasicAuth(); ok && u == "alice" && p == "right" {
		return false
	}
	w.Header().Set("WWW-Authenticate", `Basic realm="r"`)
	refuse(w, http.StatusUnauthorized, "UNAUTHORIZED")
	return true
}

func dockerConfig(t *testing.T, config string) {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("DOCKER_CONFIG", dir)
	if config != "" {
		if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func auths(f *fake, user, password string) string {
	return fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, strings.TrimPrefix(f.URL, "http://"), base64.StdEncoding.EncodeToString([]byte(user+":"+password)))
}

// TestTokenService meets registries that send us, with our password, to where no token service should be.
func TestTokenService(t *testing.T) {
	for _, realm := range []string{"http://169.254.169.254/token", "http://10.1.2.3/token", "ftp://example.com/token"} {
		f := newFake(t)
		dockerConfig(t, auths(f, "alice", "right"))
		src, d := pushed(t, f, "p:1", withSegments(1, 1))
		f.fault = func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("WWW-Authenticate", fmt.Sprintf("Bearer realm=%q,service=s", realm))
			refuse(w, http.StatusUnauthorized, "UNAUTHORIZED")
			return true
		}
		err := Push(t.Context(), src, f.ref("p:2"), d, fast())
		if !errdefs.IsPermissionDenied(err) || !strings.Contains(failure.Hint(err), "a token service must") {
			t.Errorf("%s: %v", realm, err)
		}
	}
}

func TestBasicAuth(t *testing.T) {
	f := newFake(t)
	dockerConfig(t, "")
	src, d := pushed(t, f, "p:1", withSegments(1, 1))
	f.fault = basic
	as := func(user, password string) Options {
		o := fast()
		o.Username, o.Password = user, password
		return o
	}
	if err := Push(t.Context(), src, f.ref("p:2"), d, as("alice", "right")); err != nil {
		t.Error(err)
	}
	if err := Push(t.Context(), src, f.ref("p:2"), d, as("alice", "wrong")); !errdefs.IsUnauthorized(err) || !strings.Contains(err.Error(), "password of user alice") {
		t.Errorf("wrong password: %v", err)
	}
	if _, err := Pull(t.Context(), storetest.Open(t), f.ref("p:1"), fast()); !errdefs.IsUnauthorized(err) || !strings.Contains(err.Error(), "wants a login") {
		t.Errorf("no password: %v", err)
	}
	if _, err := Resolve(t.Context(), f.ref("p:1"), fast()); !errdefs.IsUnauthorized(err) {
		t.Errorf("no password: %v", err)
	}
	t.Run("docker's store", func(t *testing.T) {
		dockerConfig(t, auths(f, "alice", "right"))
		if _, err := Pull(t.Context(), storetest.Open(t), f.ref("p:1"), fast()); err != nil {
			t.Error(err)
		}
		dockerConfig(t, auths(f, "bob", "right"))
		if _, err := Pull(t.Context(), storetest.Open(t), f.ref("p:1"), fast()); !errdefs.IsUnauthorized(err) || !strings.Contains(err.Error(), "password of user bob") {
			t.Error(err)
		}
	})
	t.Run("credential helper", func(t *testing.T) {
		dockerConfig(t, `{"credsStore":"cryotest"}`)
		dir := t.TempDir()
		t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
		if _, err := Pull(t.Context(), storetest.Open(t), f.ref("p:1"), fast()); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), ": read credentials for ") {
			t.Errorf("without the helper: %v", err)
		}
		script := "#!/bin/sh\ncat > /dev/null\necho '{\"Username\":\"alice\",\"Secret\":\"right\"}'\n"
		if err := os.WriteFile(filepath.Join(dir, "docker-credential-cryotest"), []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
		if _, err := Pull(t.Context(), storetest.Open(t), f.ref("p:1"), fast()); err != nil {
			t.Error(err)
		}
	})
	t.Run("broken config", func(t *testing.T) {
		dockerConfig(t, `{`)
		if _, err := Pull(t.Context(), storetest.Open(t), f.ref("p:1"), fast()); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), ": read credentials for ") {
			t.Error(err)
		}
	})
	t.Run("denied", func(t *testing.T) {
		dockerConfig(t, auths(f, "alice", "right"))
		f.fault = func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method == http.MethodPost {
				refuse(w, http.StatusForbidden, "DENIED")
			}
			return r.Method == http.MethodPost
		}
		if err := Push(t.Context(), src, f.ref("new:2"), d, fast()); !errdefs.IsPermissionDenied(err) {
			t.Error(err)
		}
	})
}

// The token flow of https://distribution.github.io/distribution/spec/auth/token/, with tokens that run out.
func TestTokenAuth(t *testing.T) {
	f := newFake(t)
	dockerConfig(t, "")
	var issued atomic.Int32
	// The first token of a command runs out when it has its manifest and gets blobs, or has sent its blobs and puts the manifest. Not after some uses: requests side by side
	// share a new token, and one of them would find it used up at once.
	var first atomic.Value
	var before int32
	begin := func() {
		before = issued.Load()
		first.Store(fmt.Sprint("Bearer t", before+1))
	}
	renewed := func() {
		if n := issued.Load() - before; n < 2 {
			t.Errorf("%d tokens were issued: none ran out", n)
		}
	}
	late := func(r *http.Request) bool {
		return r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") || r.Method == http.MethodPut && strings.Contains(r.URL.Path, "/manifests/")
	}
	f.fault = func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/token" {
			if u, p, ok := r.BasicAuth(); !ok || u != "alice" || p != "right" {
				refuse(w, http.StatusUnauthorized, "UNAUTHORIZED")
				return true
			}
			if s := strings.Join(r.URL.Query()["scope"], " "); !strings.Contains(s, "repository:t:pull") {
				t.Errorf("scope %q", s)
			}
			json.NewEncoder(w).Encode(map[string]any{"token": fmt.Sprint("t", issued.Add(1)), "expires_in": 60})
			return true
		}
		token := r.Header.Get("Authorization")
		if strings.HasPrefix(token, "Bearer t") && (token != first.Load() || !late(r)) {
			return false
		}
		w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="%s/token",service="s",scope="repository:t:pull,push"`, f.URL))
		refuse(w, http.StatusUnauthorized, "UNAUTHORIZED")
		return true
	}
	o := fast()
	o.Username, o.Password = "alice", "right"
	s := storetest.Open(t)
	d := storetest.MustPut(t, s, f.ref("t:1"), withSegments(1, 1, 2, 3, 4, 5, 6))
	begin()
	if err := Push(t.Context(), s, f.ref("t:1"), d, o); err != nil {
		t.Fatal(err)
	}
	renewed()
	begin()
	if _, err := Pull(t.Context(), storetest.Open(t), f.ref("t:1"), o); err != nil {
		t.Fatal(err)
	}
	renewed()
	o.Password = "wrong"
	if _, err := Pull(t.Context(), storetest.Open(t), f.ref("t:1"), o); !errdefs.IsUnauthorized(err) || !strings.Contains(err.Error(), "password of user alice") {
		t.Error(err)
	}
}

func TestUnreachable(t *testing.T) {
	dockerConfig(t, "")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := l.Addr().String()
	l.Close()
	f := newFake(t)
	_, d := pushed(t, f, "u:1", withSegments(1))
	// A request of one case may still be served in the next.
	var current atomic.Pointer[func(http.ResponseWriter, *http.Request) bool]
	f.fault = func(w http.ResponseWriter, r *http.Request) bool {
		fault := current.Load()
		return *fault != nil && (*fault)(w, r)
	}
	for name, c := range map[string]struct {
		ref   string
		fault func(http.ResponseWriter, *http.Request) bool
		kind  func(error) bool
	}{
		"refused":        {closed + "/a:1", nil, errdefs.IsUnavailable},
		"unknown host":   {"registry.invalid/a:1", nil, errdefs.IsUnavailable},
		"unknown tag":    {f.ref("u:2"), nil, errdefs.IsNotFound},
		"unknown repo":   {f.ref("v:2"), nil, errdefs.IsNotFound},
		"unknown digest": {f.ref("u@" + digest.FromString("x").String()), nil, errdefs.IsNotFound},
		"always 503":     {f.ref("u:1"), func(w http.ResponseWriter, r *http.Request) bool { w.WriteHeader(503); return true }, errdefs.IsUnavailable},
		"always cut":     {f.ref("u:1"), func(w http.ResponseWriter, r *http.Request) bool { cut(w); return true }, errdefs.IsUnavailable},
		"teapot":         {f.ref("u:1"), func(w http.ResponseWriter, r *http.Request) bool { w.WriteHeader(418); return true }, errdefs.IsFailedPrecondition},
		"no reference":   {"A//b", nil, errdefs.IsInvalidArgument},
		"digest alone":   {d.Digest.String(), nil, errdefs.IsInvalidArgument},
		"not a registry": {f.ref("u:1"), func(w http.ResponseWriter, r *http.Request) bool { w.Write([]byte("<html>")); return true }, errdefs.IsDataLoss},
		"endless redirect": {f.ref("u:1"), func(w http.ResponseWriter, r *http.Request) bool {
			http.Redirect(w, r, "/v2/x", http.StatusFound)
			return true
		}, func(err error) bool { return err != nil }},
	} {
		current.Store(&c.fault)
		start := time.Now()
		_, err := Pull(t.Context(), storetest.Open(t), c.ref, fast())
		var hint interface{ Hint() string }
		if !c.kind(err) || name != "endless redirect" && !errors.As(err, &hint) {
			t.Errorf("%s: %v", name, err)
		}
		if took := time.Since(start); took > 10*time.Second {
			t.Errorf("%s took %v", name, took)
		}
		if errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s looks like a deadline of ours", name)
		}
	}
}

func TestTLS(t *testing.T) {
	dockerConfig(t, "")
	f := unstarted()
	f.Server = httptest.NewUnstartedServer(f)
	f.Config.ErrorLog = log.New(io.Discard, "", 0)
	f.StartTLS()
	t.Cleanup(f.Close)
	ca := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: f.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	s := storetest.Open(t)
	d := storetest.MustPut(t, s, f.ref("s:1"), withSegments(1, 1))
	try := func(change func(*Options)) error {
		o := fast()
		change(&o)
		return Push(t.Context(), s, f.ref("s:1"), d, o)
	}
	host := strings.TrimPrefix(f.URL, "https://")
	const certificate = "certificate of registry"
	says := func(err error, text string) bool { return err != nil && strings.Contains(err.Error(), text) }
	if err := try(func(*Options) {}); !says(err, certificate) || !errdefs.IsUnavailable(err) {
		t.Errorf("unknown authority: %v", err)
	}
	if err := try(func(o *Options) { o.PlainHTTP = true }); !says(err, ": registry "+host+" refuses plain HTTP, perhaps since it speaks HTTPS") || !errdefs.IsUnavailable(err) {
		t.Errorf("plain HTTP: %v", err)
	}
	if err := try(func(o *Options) { o.CAFile = "/nonexistent" }); !says(err, "read certificates from /nonexistent") {
		t.Errorf("no CA file: %v", err)
	}
	if err := try(func(o *Options) { o.CAFile = ca }); err != nil {
		t.Errorf("CA file: %v", err)
	}
	if err := try(func(o *Options) { o.Insecure = true }); err != nil {
		t.Errorf("insecure: %v", err)
	}
	certs := t.TempDir()
	if err := os.Mkdir(filepath.Join(certs, host), 0o700); err != nil {
		t.Fatal(err)
	}
	data, _ := os.ReadFile(ca)
	os.WriteFile(filepath.Join(certs, host, "ca.crt"), data, 0o600)
	if err := try(func(o *Options) { o.certs = certs }); err != nil {
		t.Errorf("docker's certificates: %v", err)
	}
	// A name that the certificate is not for, and HTTP where it is not expected. 0.0.0.0 reaches loopback without being it.
	_, port, _ := net.SplitHostPort(host)
	o := fast()
	o.CAFile = ca
	if _, err := Pull(t.Context(), storetest.Open(t), "0.0.0.0:"+port+"/s:1", o); !says(err, certificate) {
		t.Errorf("wrong name: %v", err)
	}
	plain := newFake(t)
	_, port, _ = net.SplitHostPort(strings.TrimPrefix(plain.URL, "http://"))
	if _, err := Pull(t.Context(), storetest.Open(t), "0.0.0.0:"+port+"/s:1", fast()); !says(err, "speaks plain HTTP") {
		t.Errorf("HTTP for HTTPS: %v", err)
	}
}

// What a registry says must not lead uploads elsewhere.
func TestUploadStaysOnHost(t *testing.T) {
	dockerConfig(t, "")
	var reached atomic.Bool
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Store(true) }))
	defer other.Close()
	f := newFake(t)
	f.fault = func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPost {
			w.Header().Set("Location", other.URL+"/v2/x/blobs/uploads/1")
			w.WriteHeader(http.StatusAccepted)
		}
		return r.Method == http.MethodPost
	}
	s := storetest.Open(t)
	d := storetest.MustPut(t, s, f.ref("s:1"), withSegments(1))
	if err := Push(t.Context(), s, f.ref("s:1"), d, fast()); err == nil || reached.Load() {
		t.Errorf("%v, reached %v", err, reached.Load())
	}
}
