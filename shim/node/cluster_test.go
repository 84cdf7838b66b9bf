package node

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

// api is an API server that takes what it is sent.
type api struct {
	mu     sync.Mutex
	labels []map[string]string // guarded by mu: each time that they were applied
	events []map[string]any    // guarded by mu
	refuse bool                // guarded by mu
	wrong  []string            // guarded by mu: requests that should not be
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	body, _ := io.ReadAll(r.Body)
	var o map[string]any
	err := json.Unmarshal(body, &o)
	node := r.Method == http.MethodPatch && r.URL.Path == "/api/v1/nodes/n1" && r.Header.Get("Content-Type") == "application/apply-patch+yaml" && r.URL.Query().Get("fieldManager") == "cryo-node"
	event := r.Method == http.MethodPost && r.URL.Path == "/api/v1/namespaces/prod/events"
	w.Header().Set("Content-Type", "application/json")
	switch {
	case err != nil || !node && !event:
		a.wrong = append(a.wrong, fmt.Sprintf("%s %s %s %s", r.Method, r.URL, r.Header.Get("Content-Type"), body))
		w.WriteHeader(http.StatusForbidden)
	case a.refuse:
		w.WriteHeader(http.StatusServiceUnavailable)
	case event:
		a.events = append(a.events, o)
		w.Write(body)
	default:
		labels := map[string]string{}
		meta := o["metadata"].(map[string]any)
		for k, v := range asMap(meta["labels"]) {
			labels[k] = v.(string)
		}
		delete(meta, "labels")
		if rest, _ := json.Marshal(o); string(rest) != `{"apiVersion":"v1","kind":"Node","metadata":{"name":"n1"}}` {
			a.wrong = append(a.wrong, "more than labels: "+string(rest))
		}
		a.labels = append(a.labels, labels)
		w.Write(body)
	}
}

func asMap(v any) map[string]any {
	m, _ := v.(map[string]any)
	return m
}

// last gives the labels that the node has.
func (a *api) last() map[string]string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.labels) == 0 {
		return nil
	}
	return a.labels[len(a.labels)-1]
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s did not come", what)
		}
	}
}

func TestCluster(t *testing.T) {
	a := &api{}
	server := httptest.NewServer(a)
	defer server.Close()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, fmt.Appendf(nil, `{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}], clusters: [{name: c, cluster: {server: "%s"}}], users: [{name: u, user: {}}]}`, server.URL), 0o600); err != nil {
		t.Fatal(err)
	}
	m := newMetrics()
	c, err := newCluster(Options{Node: "n1", Kubeconfig: kubeconfig, Log: func(Entry) {}}, m)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { c.run(ctx); close(ended) }()
	eventually(t, "the first labels", func() bool { return a.last()[RuntimeLabel] == "true" })
	digest := "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	const key = "ready.io.cryo/0123456789abcdef0123456789abcdef"
	c.setReady(map[string]bool{digest: false})
	eventually(t, "a ready snapshot", func() bool { return a.last()[key] == "memory" })
	c.setReady(map[string]bool{digest: true})
	eventually(t, "its device memory", func() bool { return a.last()[key] == "gpu" })
	for k, v := range a.last() {
		if _, name, _ := strings.Cut(k, "/"); len(name) > 63 || len(v) > 63 || !regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`).MatchString(v) {
			t.Errorf("%s=%s is no label", k, v)
		}
	}
	c.setReady(nil)
	eventually(t, "no snapshot", func() bool { return a.last()[key] == "" })

	c.post(podEvent{Pod: "web-1", Namespace: "prod", UID: "u-1", Container: "app", Reason: "StartedCold", Message: "started cold\nforged " + strings.Repeat("ä", 2000), Warning: true})
	eventually(t, "the event", func() bool { a.mu.Lock(); defer a.mu.Unlock(); return len(a.events) == 1 })
	e := a.events[0]
	about := asMap(e["involvedObject"])
	if e["type"] != "Warning" || e["reason"] != "StartedCold" || about["uid"] != "u-1" || about["name"] != "web-1" || about["fieldPath"] != "spec.containers{app}" || asMap(e["metadata"])["generateName"] != "web-1." {
		t.Errorf("the event is %v", e)
	}
	if message := e["message"].(string); len(message) > maxMessage || len(message) < maxMessage-2 || strings.Contains(message, "\n") {
		t.Errorf("its message has %d bytes: %s", len(message), message)
	}

	a.mu.Lock()
	a.refuse = true
	a.mu.Unlock()
	c.post(podEvent{Pod: "web-2", Namespace: "prod"})
	eventually(t, "a failed request", func() bool { return testutil.ToFloat64(m.api.WithLabelValues("event")) == 1 })
	a.mu.Lock()
	a.refuse = false
	a.mu.Unlock()
	cancel()
	<-ended
	c.leave(t.Context())
	if left := a.last(); len(left) > 0 {
		t.Errorf("labels %v are left", left)
	}
	if len(a.wrong) > 0 {
		t.Errorf("it has asked for more than it may: %q", a.wrong)
	}
}

func TestNoCluster(t *testing.T) {
	if _, err := newCluster(Options{Node: "n1"}, newMetrics()); err == nil || !strings.Contains(err.Error(), "reach Kubernetes") {
		t.Error(err)
	}
}

func TestFacts(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"proc/cpuinfo":               "model name\t: CPU\nflags\t\t: fpu sse2 avx\n",
		"proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\nGCC version: 12.2.0\n",
	} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f := facts(root)
	if f[driverLabel] != "580.159.04" || len(f[cpuLabel]) != 16 {
		t.Errorf("%v", f)
	}
	if err := os.WriteFile(filepath.Join(root, "proc/driver/nvidia/version"), []byte("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "proc/cpuinfo"), []byte("flags\t\t: fpu sse2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if g := facts(root); g[driverLabel] != "535.104.05" || g[cpuLabel] == f[cpuLabel] {
		t.Errorf("%v after %v", g, f)
	}
}
