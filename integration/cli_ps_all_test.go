package integration

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// psEntry is what cryo ps says of a container.
type psEntry struct {
	Name, Status, Snapshot, Reference, Lost string
	PID                                     int
	Memory                                  *struct {
		Here, Total int64
		Waiting     string
	}
}

// listed gives what cryo ps says of one container, nil if it says nothing.
func listed(t *testing.T, h *lab.Host, id string) *psEntry {
	t.Helper()
	var all []psEntry
	out := must(t, h.Cryo(t.Context(), "ps", "--json")).Stdout
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	for _, e := range all {
		if e.Name == id {
			return &e
		}
	}
	return nil
}

// TestCLIPs lists containers: fresh, restored while their memory comes, lost, stopped, and not those of others.
func TestCLIPs(t *testing.T) {
	h, ref := slowHost(t, 16)
	other, fresh := name(t)+"-other", name(t)
	start(t, h, other, []string{"--runtime", runcRuntime}, "workload", "count")
	start(t, h, fresh, nil, "workload", "count")
	if e := listed(t, h, other); e != nil {
		t.Errorf("a container of runc's: %+v", e)
	}
	if e := listed(t, h, fresh); e == nil || e.Status != "running" || e.PID == 0 || e.Memory != nil || e.Snapshot != "" {
		t.Errorf("a fresh container: %+v", e)
	}
	id := restoreLazily(t, h, ref)
	eventually(t, "some of the memory", 10*time.Second, func() bool {
		e := listed(t, h, id)
		return e != nil && e.Memory != nil && e.Memory.Here > 0 && e.Memory.Here < e.Memory.Total
	})
	e := listed(t, h, id)
	if e.Status != "running" || !strings.HasSuffix(e.Reference, "lazy/count:1") || e.Snapshot != string(inspect(t, h, ref).Digest) || e.Memory.Total < 16<<20 {
		t.Errorf("while memory comes: %+v %+v", e, e.Memory)
	}
	if out := must(t, h.Cryo(t.Context(), "ps")).Stdout; !strings.Contains(out, "iB of ") || !strings.Contains(out, "%)") || !strings.Contains(out, "lazy/count:1") {
		t.Errorf("while memory comes:\n%s", out)
	}
	eventually(t, "all of the memory", time.Minute, func() bool {
		e := listed(t, h, id)
		return e.Memory.Here == e.Memory.Total
	})
	lost := restoreLazily(t, h, ref)
	kill(t, restorerOf(t, h))
	eventually(t, "its end", 30*time.Second, func() bool { return listed(t, h, lost).Status == "lost" })
	reason := listed(t, h, lost).Lost
	if out := must(t, h.Cryo(t.Context(), "ps")).Stdout; reason == "" || !strings.Contains(out, fmt.Sprintf("%s is lost: %s", lost, reason)) {
		t.Errorf("the reason is %q, and ps prints\n%s", reason, out)
	}
	must(t, h.Ctr(t.Context(), "tasks", "kill", "--signal", "KILL", fresh))
	eventually(t, "a stopped container", 30*time.Second, func() bool { e := listed(t, h, fresh); return e.Status == "stopped" && e.PID == 0 })
	must(t, h.Ctr(t.Context(), "tasks", "delete", fresh))
	if e := listed(t, h, fresh); e == nil || e.Status != "none" {
		t.Errorf("without a task: %+v", e)
	}
	if out := must(t, h.Cryo(t.Context(), "ps", "-q")).Stdout; strings.Count(out, "\n") != 3 {
		t.Errorf("ps -q:\n%s", out)
	}
}
