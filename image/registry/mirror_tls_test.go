package registry

import (
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/integration/storetest"
)

// authorityOf writes the certificate of a fake with TLS to a file.
func authorityOf(t *testing.T, f *fake) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: f.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestMirrorCredentials: the registry's password is not for its mirror, and the other way about.
func TestMirrorCredentials(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	_, d := pushed(t, f, "m:1", withSegments(1, 1))
	asks := func(f *fake, password string) func() []*http.Request {
		f.fault = func(w http.ResponseWriter, r *http.Request) bool {
			if user, got, ok := r.BasicAuth(); ok && user == "u" && got == password {
				return false
			}
			status(401, "WWW-Authenticate", `Basic realm="r"`)(w, r)
			return true
		}
		return f.asked()
	}
	auths := func(t *testing.T, hosts map[string]string) string {
		t.Helper()
		var all []string
		for host, password := range hosts {
			all = append(all, fmt.Sprintf("%q: {\"auth\": %q}", host, base64.StdEncoding.EncodeToString([]byte("u:"+password))))
		}
		path := filepath.Join(t.TempDir(), "config.json")
		if err := os.WriteFile(path, []byte(`{"auths": {`+strings.Join(all, ",")+`}}`), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	never := func(t *testing.T, requests []*http.Request, password string) {
		t.Helper()
		for _, r := range requests {
			if _, got, _ := r.BasicAuth(); got == password {
				t.Errorf("%s %s has the password %s", r.Method, r.URL, password)
			}
		}
	}
	for _, flags := range []bool{false, true} {
		for _, known := range []bool{false, true} {
			t.Run(fmt.Sprintf("flags %v, mirror known %v", flags, known), func(t *testing.T) {
				m := mirrorOf(t, f)
				atRegistry, atMirror := asks(f, "registry's"), asks(m, "mirror's")
				f.forget()
				o := by(t, "_default", first(m))
				stored := map[string]string{f.host(): "registry's"}
				if known {
					stored[m.host()] = "mirror's"
				}
				o.DockerConfig = auths(t, stored)
				if flags {
					o.Username, o.Password = "u", "registry's"
				}
				pullBy(t, f.ref("m:1"), d, o)
				never(t, atMirror(), "registry's")
				never(t, atRegistry(), "mirror's")
				if n := f.count(""); n > 0 == known {
					t.Errorf("the registry got %d requests", n)
				}
			})
		}
	}
}

// TestMirrorTLS has mirrors and a registry whose certificates and headers hosts.toml names.
func TestMirrorTLS(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	_, d := pushed(t, f, "m:1", withSegments(1, 1))
	secure := func(t *testing.T) (*fake, string) {
		t.Helper()
		m := unstarted()
		m.blobs, m.manifests = f.blobs, f.manifests
		m.Server = httptest.NewTLSServer(m)
		t.Cleanup(m.Close)
		return m, authorityOf(t, m)
	}
	for name, key := range map[string]string{"ca": "ca = %q\n", "cas": "ca = [%q]\n", "skip_verify": "skip_verify = true # %q\n", "neither": "# %q\n"} {
		t.Run(name, func(t *testing.T) {
			m, ca := secure(t)
			requests := m.asked()
			f.forget()
			pullBy(t, f.ref("m:1"), d, by(t, "_default", first(m)+fmt.Sprintf(key, ca)+fmt.Sprintf("[host.%q.header]\nX-Key = 'secret'\n", m.URL)))
			if n := len(requests()); n > 0 != (name != "neither") {
				t.Errorf("the mirror got %d requests", n)
			}
			for _, r := range requests() {
				if r.Header.Get("X-Key") != "secret" {
					t.Errorf("%s has not the header", r.URL)
				}
			}
		})
	}
	t.Run("the registry's", func(t *testing.T) {
		r, ca := secure(t)
		pullBy(t, r.ref("m:1"), d, by(t, "_default", fmt.Sprintf("ca = %q\n", ca)))
		if _, err := Pull(t.Context(), storetest.Open(t), r.ref("m:1"), fast()); !errdefs.IsUnavailable(err) {
			t.Errorf("without the authority: %v", err)
		}
	})
	t.Run("a mirror's is not the registry's", func(t *testing.T) {
		r, ca := secure(t)
		m := mirrorOf(t, f)
		o := by(t, "_default", first(m)+fmt.Sprintf("ca = %q\n", ca))
		m.Close()
		if _, err := Pull(t.Context(), storetest.Open(t), r.ref("m:1"), o); !errdefs.IsUnavailable(err) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("headers stay with their host", func(t *testing.T) {
		m, n := mirrorOf(t, f), mirrorOf(t, f)
		m.fault = func(w http.ResponseWriter, r *http.Request) bool {
			http.Redirect(w, r, n.URL+r.URL.Path, http.StatusTemporaryRedirect)
			return true
		}
		sentOn := n.asked()
		pullBy(t, f.ref("m:1"), d, by(t, "_default", first(m)+fmt.Sprintf("[host.%q.header]\nX-Key = 'secret'\n", m.URL)))
		if len(sentOn()) == 0 {
			t.Error("redirects are not followed")
		}
		for _, r := range sentOn() {
			if r.Header.Get("X-Key") != "" {
				t.Errorf("%s has the header", r.URL)
			}
		}
	})
	t.Run("override_path", func(t *testing.T) {
		m := mirrorOf(t, f)
		m.fault = func(w http.ResponseWriter, r *http.Request) bool {
			path, ok := strings.CutPrefix(r.URL.Path, "/cache/x/")
			if !ok {
				status(404)(w, r)
				return true
			}
			r.URL.Path = "/v2/" + path
			return false
		}
		f.forget()
		pullBy(t, f.ref("m:1"), d, by(t, "_default", fmt.Sprintf("[host.%q]\noverride_path = true\n", m.URL+"/cache/x")))
		if n := f.count(""); n > 0 {
			t.Errorf("the registry got %d requests", n)
		}
	})
}
