package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// nodeService is cryo node on a host. What it is to keep prewarmed is a file as in a ConfigMap: behind a symlink, which changes.
type nodeService struct {
	host   *lab.Host
	dir    string
	round  int
	end    func(sig syscall.Signal) lab.Result // once
	client http.Client
}

// newNodeService starts none.
func newNodeService(t *testing.T, h *lab.Host) *nodeService {
	n := &nodeService{host: h, dir: filepath.Join(h.Dir, "node")}
	if err := os.MkdirAll(n.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	n.client.Transport = &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", n.socket())
	}}
	n.write(t, "")
	if err := os.Symlink("..data/prewarm.toml", filepath.Join(n.dir, "prewarm.toml")); err != nil {
		t.Fatal(err)
	}
	return n
}

func (n *nodeService) socket() string { return filepath.Join(n.dir, "s") }

// write replaces the file as the kubelet does.
func (n *nodeService) write(t *testing.T, text string) {
	t.Helper()
	n.round++
	of := fmt.Sprintf("..%d", n.round)
	if err := os.Mkdir(filepath.Join(n.dir, of), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(n.dir, of, "prewarm.toml"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	next := filepath.Join(n.dir, "..data_tmp")
	if err := os.Symlink(of, next); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, filepath.Join(n.dir, "..data")); err != nil {
		t.Fatal(err)
	}
}

// want has these kept.
func (n *nodeService) want(t *testing.T, refs ...string) {
	t.Helper()
	text := ""
	for _, ref := range refs {
		text += fmt.Sprintf("[[snapshot]]\nref = %q\n", ref)
	}
	n.write(t, text)
}

func (n *nodeService) args() []string {
	return []string{"node", "--prewarm", filepath.Join(n.dir, "prewarm.toml"), "--listen", "unix:" + n.socket()}
}

// start starts the service and waits until it is connected.
func (n *nodeService) start(t *testing.T) {
	t.Helper()
	c := n.host.Command(context.WithoutCancel(t.Context()), "cryo", append(n.args(), "--json")...)
	started, ended := make(chan struct{}), make(chan lab.Result, 1)
	go func() { ended <- lab.Follow(c, func() { close(started) }) }()
	<-started
	done := false
	n.end = func(sig syscall.Signal) lab.Result {
		done = true
		_ = c.Process.Signal(sig)
		return <-ended
	}
	t.Cleanup(func() {
		if !done {
			t.Logf("%+v", n.end(syscall.SIGKILL))
		}
	})
	eventually(t, "the service", 30*time.Second, func() bool { code, _ := n.get("/healthz"); return code == http.StatusOK })
}

func (n *nodeService) get(path string) (code int, body string) {
	r, err := n.client.Get("http://node" + path)
	if err != nil {
		return 0, err.Error()
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return 0, err.Error()
	}
	return r.StatusCode, string(text)
}

type nodeState struct{ Reference, Digest, State, Error, Hint string }

// states are those of /healthz.
func (n *nodeService) states(t *testing.T) []nodeState {
	t.Helper()
	_, body := n.get("/healthz")
	var h struct{ Snapshots []nodeState }
	if err := json.Unmarshal([]byte(body), &h); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	return h.Snapshots
}

// comes waits until the snapshots of the file are in these states.
func (n *nodeService) comes(t *testing.T, states ...string) {
	t.Helper()
	var last []nodeState
	defer func() {
		if t.Failed() {
			t.Logf("the last states: %+v", last)
		}
	}()
	eventually(t, fmt.Sprint(states), time.Minute, func() bool {
		last = n.states(t)
		var are []string
		for _, s := range last {
			are = append(are, s.State)
		}
		return slices.Equal(are, states)
	})
}

// counts waits until a metric has a value.
func (n *nodeService) counts(t *testing.T, line string) {
	t.Helper()
	body := ""
	defer func() {
		if t.Failed() {
			t.Log(body)
		}
	}()
	eventually(t, line, 30*time.Second, func() bool { _, body = n.get("/metrics"); return strings.Contains("\n"+body, "\n"+line+"\n") })
}

// TestNodeUnsigned: what nobody has signed is not prewarmed, unless the configuration has its repository as unsigned.
func TestNodeUnsigned(t *testing.T) {
	path, _ := pushedMarked(t, nil, "count")
	ref := shared.registry.Reference(path)
	h := annotationHost(t, "node-unsigned")
	allowAnnotation(t, h, "[trust]\ndefault = \"unsigned\"", shared.registry.Address)
	n := newNodeService(t, h)
	n.want(t, ref)
	n.start(t)
	n.comes(t, "failed")
	if s := n.states(t)[0]; !strings.Contains(s.Hint, "[trust.repositories]") || !strings.Contains(s.Hint, strings.TrimSuffix(ref, ":1")+`" = "unsigned"`) {
		t.Errorf("what is not signed: %+v", s)
	}
	must(t, h.Cryo(t.Context(), "prewarm", ref, "--plain-http")) // who types it is warned
}
