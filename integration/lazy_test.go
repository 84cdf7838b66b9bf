package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// The tests whose names begin with TestLazy look at containers whose memory is filled in while they run. On their host, memory
// that nobody waits for comes at 1 MiB a second, so that there is time to look.

const slowly = "[restore]\nfill-rate = 1\n"

// slowHost is a host with a snapshot of a container with so much memory, which runs no more.
func slowHost(t *testing.T, mib int) (h *lab.Host, ref string) {
	t.Helper()
	h = newHost(t, "lazy", lab.HostOptions{CryoConfig: slowly})
	id, ref := name(t), "lazy/count:1"
	start(t, h, id, nil, "workload", "count", "--memory", fmt.Sprint(mib))
	must(t, h.Cryo(t.Context(), "checkpoint", id, ref))
	remove(t.Context(), h, id)
	return h, ref
}

// restoreLazily restores a snapshot and sees that it runs, and that its memory is being filled in.
func restoreLazily(t *testing.T, h *lab.Host, ref string) (id string) {
	t.Helper()
	id = name(t)
	cleanup(t, h, id)
	var r struct {
		Lazy  bool
		Eager string
	}
	out := must(t, h.Cryo(t.Context(), "restore", ref, "--name", id, "--json")).Stdout
	if err := json.Unmarshal([]byte(out), &r); err != nil || !r.Lazy {
		t.Fatalf("%v, %s", err, out)
	}
	hello(t, h, id)
	return id
}

// hello has the workload answer, which needs next to nothing of its memory.
func hello(t *testing.T, h *lab.Host, id string) {
	t.Helper()
	if a, err := h.AwaitAnswer(t.Context(), id, "hello"); err != nil || !a.OK {
		t.Fatalf("%s: %v, %s", id, err, a.Error)
	}
}

// restorerOf is the only restore process, which fills in memory.
func restorerOf(t *testing.T, h *lab.Host) int {
	t.Helper()
	pids := restorers(t, h)
	if len(pids) != 1 {
		t.Fatalf("there are %d restore processes", len(pids))
	}
	return pids[0]
}

// ended waits until a container has stopped, and gives what its shim has written down about that.
func ended(t *testing.T, h *lab.Host, id string) string {
	t.Helper()
	eventually(t, "the end of "+id, 30*time.Second, func() bool {
		_, status, err := h.Task(t.Context(), id)
		return err == nil && (status == "STOPPED" || status == "")
	})
	var noted struct{ Lost string }
	data, err := os.ReadFile(filepath.Join(h.Dir, "run/containerd/io.containerd.runtime.v2.task/default", id, "cryo-memory.json"))
	if err == nil {
		err = json.Unmarshal(data, &noted)
	}
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return noted.Lost
}

// TestLazyUnder has a process whose memory is filled in later, under one whose memory at the same addresses is there at once, which the first
// inherits in CRIU's restore. Where the kernel makes pages huge without being asked (transparent_hugepage/enabled is "always"), those must not
// become such: what else lies in them would be zeros to the process below.
func TestLazyUnder(t *testing.T) {
	a, _ := pair(t)
	id, ref := name(t), "lazy/under:1"
	start(t, a, id, nil, "workload", "churn", "--under")
	forget(t, a, ref)
	must(t, a.Cryo(t.Context(), "checkpoint", id, ref))
	remove(t.Context(), a, id)
	id = restoreLazily(t, a, ref)
	found := slices.DeleteFunc(processes(t, a), func(p process) bool { return p.command != "workload" && p.command != "exe" })
	if len(found) != 3 {
		t.Errorf("there are %v", found)
	}
	for _, p := range found {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.pid))
		if err != nil || !strings.Contains(string(status), "THP_enabled:\t1\n") {
			t.Errorf("%d may not have huge pages any more: %v, %s", p.pid, err, status)
		}
	}
	if a, err := a.Ask(t.Context(), id, "churn", "1"); err != nil || !a.OK {
		t.Fatalf("%v, %s", err, a.Error)
	}
}

// TestLazyOff has an operator who wants all memory there before a container runs.
func TestLazyOff(t *testing.T) {
	h := newHost(t, "lazy-off", lab.HostOptions{CryoConfig: "[restore]\nlazy = false\n"})
	id, ref := name(t), "lazy/off:1"
	start(t, h, id, nil, "workload", "count")
	must(t, h.Cryo(t.Context(), "checkpoint", id, ref))
	remove(t.Context(), h, id)
	if out := must(t, h.Cryo(t.Context(), "restore", ref, "--name", id, "--json")).Stdout; !strings.Contains(out, `"lazy": false`) || !strings.Contains(out, "restore.lazy") {
		t.Errorf("restore says %s", out)
	}
	await(t, h, id)
}
