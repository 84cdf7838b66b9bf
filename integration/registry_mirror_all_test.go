package integration

import (
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
)

// TestMirrorBase restores a container whose base image is not on the host, by a mirror that sends each blob with another first byte. The base image has a layer that containerd stores as it
// comes, so that the wrong one has to be dropped.
func TestMirrorBase(t *testing.T) {
	a, b := pair(t)
	id := name(t)
	built := "docker.io/library/" + id + ":dev"
	if err := a.ImportPrograms(t.Context(), built, []string{"workload", "count"}, map[string]string{"perl": "/usr/bin/perl"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Ctr(cleanupContext(t), "images", "rm", built) })
	startImage(t, a, built, id, nil, "workload", "count")
	before := await(t, a, id)
	ref := shared.registry.Reference("mirror-base/" + id + ":1")
	away(t, ref)
	must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--push", "--plain-http"))
	remove(t.Context(), a, id)

	var wrong atomic.Int64
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: shared.registry.Address})
	proxy.ModifyResponse = func(r *http.Response) error {
		if r.Request.Method == http.MethodGet && strings.Contains(r.Request.URL.Path, "/blobs/") {
			wrong.Add(1)
			r.Body = &flippedBody{ReadCloser: r.Body}
		}
		return nil
	}
	l, err := net.Listen("tcp", net.JoinHostPort(shared.lab.Address(), "0"))
	if err != nil {
		t.Fatal(err)
	}
	mirror := &httptest.Server{Listener: l, Config: &http.Server{Handler: proxy}}
	mirror.Start()
	t.Cleanup(mirror.Close)
	mirrored(t, b, l.Addr().String())
	thaw(t, b, frozen{id: id, before: before}, ref)
	must(t, b.Cryo(t.Context(), "verify", "--pull", "never", ref))
	if wrong.Load() == 0 {
		t.Error("the mirror was not asked")
	}
}

// TestMirrorStalls restores a container from a mirror. While the container runs, the mirror stops sending in the middle of its memory, and keeps the connections open.
func TestMirrorStalls(t *testing.T) {
	_, b := pair(t)
	f := freeze(t, []string{"count", "--memory", "16"}, "--push", "--plain-http", "--segment-size", "4MiB")
	goesOnWithout(t, b, newGate(t, shared.registry, "artifact/"+f.id+":1"), f, func() {})
}
