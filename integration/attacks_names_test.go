package integration

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"

	"github.com/cryo-project/cryo/integration/lab"
)

// TestAttackPassword has a snapshot whose base image is at a host of its author's: what the user gives for the snapshot's registry does not go there, and plain HTTP is not
// spoken with it (42).
func TestAttackPassword(t *testing.T) {
	_, b := pair(t)
	g := newForger(t, freeze(t, []string{"count"}))
	unauthorized := func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	}
	evil := newHostile(t, g, g.manifest, unauthorized)
	m := g.withConfig(t, func(config, _ map[string]any) {
		c := config["container"].(map[string]any)
		c["image"], c["imageDigest"] = evil.address+"/base:latest", "sha256:"+strings.Repeat("ab", 32)
	})
	given := false
	good := newHostile(t, g, m, func(w http.ResponseWriter, r *http.Request) bool {
		if user, _, ok := r.BasicAuth(); ok && user == "joe" {
			given = true
			return false
		}
		return unauthorized(w, r)
	})
	forget(t, b, good.ref("password"))
	before := trace(t, b)
	r := harmless(t, b, nil, 128<<20, "restore", good.ref("password"), "--user", "joe:secret", "--plain-http", "--name", "password")
	if r.Code == 0 || !strings.Contains(r.Stderr, "get the base image") {
		t.Errorf("exit code %d: %s", r.Code, r.Stderr)
	}
	if asked := evil.requests(); len(asked) > 0 || !given {
		t.Errorf("the other host was asked in plain HTTP for %q; the password was asked for by the snapshot's own: %t", asked, given)
	}
	wantTrace(t, b, before, "blob ", "store /")
}

// TestAttackCDI has a record of GPUs beside CRIU's images, restored by a stock client into a container whose specification has none (45): it gets none.
func TestAttackCDI(t *testing.T) {
	h := newHost(t, "cdi", lab.HostOptions{GPUs: &gpusOfA})
	id := name(t)
	start(t, h, id, nil, "workload", "count")
	images := filepath.Join(t.TempDir(), "images")
	must(t, h.Ctr(t.Context(), "tasks", "checkpoint", "--exit", "--image-path", images, id))
	record, err := json.Marshal(map[string]any{"engine": "driver", "driver": "580.159.04", "devices": []any{}, "processes": []any{}, "cdi": []string{"nvidia.com/gpu=0"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(images, "cryo-gpu.json"), record, 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the container ends", mostTime, func() bool {
		_, status, _ := h.Task(t.Context(), id)
		return status == "STOPPED"
	})
	must(t, h.Ctr(t.Context(), "tasks", "delete", id))
	c := newCanaries(t, h)
	ctx := inDefault(t)
	container, err := client(t, h).LoadContainer(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	before := c.look()
	task, err := container.NewTask(ctx, cio.NullIO, containerd.WithRestoreImagePath(images))
	if err == nil {
		err = task.Start(ctx)
	}
	if err == nil || !strings.Contains(err.Error(), "the snapshot's record names") {
		t.Errorf("restored with %v", err)
	}
	for _, change := range changes(before, c.look()) {
		t.Error(change)
	}
	if spec := must(t, h.Ctr(t.Context(), "containers", "info", id)).Stdout; strings.Contains(spec, "nvidia") {
		t.Errorf("the container has a GPU: %s", spec)
	}
}
