package integration

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/cryo-project/cryo/integration/lab"
)

// TestNode: what the file lists is prewarmed, as it changes, with a registry that goes away; nothing else is removed.
func TestNode(t *testing.T) {
	pathA, _ := pushedMarked(t, nil, "count")
	pathB, _ := pushedMarked(t, nil, "count")
	own := newRegistry(t, "node", lab.RegistryOptions{})
	a, b := shared.registry.Reference(pathA), shared.registry.Reference(pathB)
	h := annotationHost(t, "node", shared.registry.Address, own.Address)
	cold(t, h)
	n := newNodeService(t, h)
	n.want(t, a, "elsewhere.example/not/allowed:1")
	n.start(t)
	n.comes(t, "ready", "failed")
	wantWarm(t, h, a)
	wantCached(t, h, a)
	if s := n.states(t)[1]; !strings.Contains(s.Hint, "repositories under [restore.policy]") {
		t.Errorf("a registry that is not allowed: %+v", s)
	}
	n.counts(t, `cryo_prewarms_total{result="done"} 1`)
	n.counts(t, `cryo_prewarms_total{result="restore-policy"} 1`)
	n.counts(t, `cryo_prewarm_snapshots{state="ready"} 1`)
	refusal(t, h.Cryo(t.Context(), n.args()...), codePrecondition, "cryo node runs already")

	// Nonsense changes nothing.
	n.write(t, "[[snapshot]]\nreference = 1")
	eventually(t, "a wrong file", 30*time.Second, func() bool {
		code, body := n.get("/healthz")
		return code == http.StatusServiceUnavailable && strings.Contains(body, "prewarm.toml")
	})
	wantWarm(t, h, a)

	// Of others is what they have prewarmed, also where it is listed for a time.
	n.want(t, b)
	n.comes(t, "ready")
	wantWarm(t, h, b)
	forget(t, h, a)
	prewarm(t, h, a, "--plain-http")
	n.want(t, a, b)
	n.comes(t, "ready", "ready")
	n.want(t)
	n.comes(t)
	eventually(t, "removal", 30*time.Second, func() bool { return len(warm(t, h)) == 1 })
	wantWarm(t, h, a)
	must(t, h.Cryo(t.Context(), "prewarm", "rm", a))

	// A registry that is away, and a service that is killed.
	must(t, h.Cryo(t.Context(), "pull", b, "--plain-http"))
	c := own.Reference("node/c:1")
	must(t, h.Cryo(t.Context(), "push", b, c, "--plain-http"))
	must(t, h.Cryo(t.Context(), "rm", b))
	if err := own.Stop(); err != nil {
		t.Fatal(err)
	}
	n.want(t, c)
	n.comes(t, "failed")
	if r := n.end(syscall.SIGKILL); r.Code != 128+int(syscall.SIGKILL) {
		t.Errorf("%+v", r)
	}
	n.start(t)
	n.comes(t, "failed")
	if err := own.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.comes(t, "ready")
	wantWarm(t, h, c)
	n.end(syscall.SIGKILL)
	n.want(t)
	n.start(t)
	eventually(t, "removal", 30*time.Second, func() bool { return len(warm(t, h)) == 0 })
	if size := treeSize(t, filepath.Join(h.CryoRoot(), "store/blobs")); size > 0 {
		t.Errorf("%d bytes are left of what was fetched", size)
	}
	r := n.end(syscall.SIGTERM)
	if r.Code != 0 || strings.Contains(r.Stderr, "cryo: ") || !strings.Contains(r.Stdout, `"what":"removed"`) {
		t.Errorf("%+v", r)
	}
	if _, err := os.Stat(n.socket()); err == nil {
		t.Error("the socket is left")
	}
}

// TestNodeKilled kills the service while it prewarms a snapshot. The next service finishes that if the snapshot is still listed, and removes what was begun if it is not.
func TestNodeKilled(t *testing.T) {
	path, _ := pushedMarked(t, nil, "count", "--memory", "32")
	g := newGate(t, shared.registry, path)
	ref := g.address + "/" + path
	h := annotationHost(t, "nodekilled", g.address)
	cold(t, h)
	n := newNodeService(t, h)
	killed := func() {
		t.Helper()
		held := g.held.Load()
		n.want(t, ref)
		n.start(t)
		eventually(t, "the pull", 30*time.Second, func() bool { return g.held.Load() > held })
		if r := n.end(syscall.SIGKILL); r.Code != 128+int(syscall.SIGKILL) {
			t.Errorf("%+v", r)
		}
		wantWarm(t, h)
	}
	killed()
	n.want(t)
	n.start(t)
	n.comes(t)
	if r := n.end(syscall.SIGTERM); r.Code != 0 || !strings.Contains(r.Stdout, `"what":"removed"`) {
		t.Errorf("%+v", r)
	}
	if all := must(t, h.Cryo(t.Context(), "ls", "-q")).Stdout; all != "" {
		t.Errorf("the local store has %s", all)
	}
	must(t, h.Cryo(t.Context(), "prune"))
	if size := treeSize(t, h.CryoRoot()); size > 1<<20 {
		t.Errorf("%d bytes are left", size)
	}
	killed()
	g.open()
	n.start(t)
	n.comes(t, "ready")
	wantWarm(t, h, ref)
	n.want(t)
	eventually(t, "removal", 30*time.Second, func() bool { return len(warm(t, h)) == 0 })
	if r := n.end(syscall.SIGTERM); r.Code != 0 {
		t.Errorf("%+v", r)
	}
}

// TestNodeBudget: where the budget has no room for all, the first of the file stay, and nothing is fetched again and again.
func TestNodeBudget(t *testing.T) {
	pathA, _ := pushedMarked(t, nil, "count", "--memory", "8")
	pathB, _ := pushedMarked(t, nil, "count", "--memory", "8")
	a, b := shared.registry.Reference(pathA), shared.registry.Reference(pathB)
	h := annotationHost(t, "budget", shared.registry.Address)
	cold(t, h)
	n := newNodeService(t, h)
	n.write(t, fmt.Sprintf("[budget]\ndisk = 16\n[[snapshot]]\nref = %q\n[[snapshot]]\nref = %q\n", a, b))
	n.start(t)
	n.comes(t, "ready", "failed")
	wantWarm(t, h, a)
	n.counts(t, `cryo_prewarms_total{result="done"} 3`) // the first one twice
	time.Sleep(12 * time.Second)                        // it has looked once more
	n.counts(t, `cryo_prewarms_total{result="done"} 3`)
	n.want(t, b)
	n.comes(t, "ready")
	wantWarm(t, h, b)
	n.want(t)
	eventually(t, "removal", 30*time.Second, func() bool { return len(warm(t, h)) == 0 })
	if r := n.end(syscall.SIGTERM); r.Code != 0 {
		t.Errorf("%+v", r)
	}
}

// TestNodeCounts: restores and cold starts are counted, across a restart of containerd.
func TestNodeCounts(t *testing.T) {
	path, _ := pushedMarked(t, nil, "count")
	ref := shared.registry.Reference(path)
	h := annotationHost(t, "counts", shared.registry.Address)
	cold(t, h)
	n := newNodeService(t, h)
	n.want(t, ref)
	n.start(t)
	n.comes(t, "ready")
	id := name(t)
	must(t, runFrom(t, h, id, "elsewhere.example/x:1", []string{"--annotation", fallbackAnnotation + "=start"}, "workload", "count"))
	n.counts(t, `cryo_cold_starts_total{reason="restore-policy"} 1`)
	if err := h.StopDaemon(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	eventually(t, "containerd's end", 30*time.Second, func() bool { code, _ := n.get("/healthz"); return code == http.StatusServiceUnavailable })
	if err := h.StartDaemon(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "containerd", 30*time.Second, func() bool { code, _ := n.get("/healthz"); return code == http.StatusOK })
	event, err := structpb.NewStruct(map[string]any{"container_id": id, "snapshot": ref, "digest": n.states(t)[0].Digest, "seconds": 0.8})
	if err != nil {
		t.Fatal(err)
	}
	if err := client(t, h).EventService().Publish(inDefault(t), "/cryo/restore/restored", event); err != nil {
		t.Fatal(err)
	}
	n.counts(t, `cryo_restores_total{prewarmed="true"} 1`)
	n.counts(t, `cryo_restore_seconds_count 1`)
	forget(t, h, "cryo.test/counts:1")
	must(t, h.Cryo(t.Context(), "checkpoint", id, "cryo.test/counts:1", "--leave-running"))
	n.counts(t, `cryo_checkpoints_total{result="done"} 1`)
	n.counts(t, `cryo_checkpoint_freeze_seconds_count 1`)
	if _, body := n.get("/metrics"); !strings.Contains(body, `cryo_checkpoint_phase_seconds_total{phase="dump"} 0.`) || strings.Contains(body, "cryo_checkpoint_bytes_total 0\n") || !strings.Contains(body, "cryo_checkpoint_sent_bytes_total 0\n") {
		t.Error(body)
	}
	refusal(t, h.Cryo(t.Context(), "checkpoint", "nobody", "cryo.test/counts:1"), codeNotFound, "has none of this name")
	n.counts(t, `cryo_checkpoints_total{result="not found"} 1`)
	remove(t.Context(), h, id)
	r := n.end(syscall.SIGTERM)
	if r.Code != 0 || !strings.Contains(r.Stdout, "restore-policy: ") || !strings.Contains(r.Stdout, `"seconds":0.8`) {
		t.Errorf("%+v", r)
	}
}
