package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cryo-project/cryo/integration/lab"
)

// TestBadKilledFrozen kills CRIU in a dump where runc cannot thaw any more, as it could not under heavy load. When the command says that the container
// runs on, it does.
func TestBadKilledFrozen(t *testing.T) {
	bin := t.TempDir()
	real := filepath.Join(shared.lab.Tool("tools"), "runc")
	script := "#!/bin/sh\nfor word; do [ \"$word\" = resume ] && exit 1; done\nexec " + real + " \"$@\"\n"
	if err := os.WriteFile(filepath.Join(bin, "runc"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	h := newHost(t, "frozen", lab.HostOptions{Path: []string{bin}})
	id, ref := name(t), "bad/frozen:1"
	start(t, h, id, nil, "workload", "count", "--memory", "64")
	before := trace(t, h)
	r := duringDump(t, h, id, ref, func(criu int) { kill(t, criu) })
	if freezer := freezerOf(t, h, id); freezer != "" && state(t, freezer) != "THAWED" {
		t.Errorf("it is %s after %v", state(t, freezer), r)
	}
	refusal(t, r, codeAborted, "the container runs on")
	counts(t, h, id)
	wantTrace(t, h, before)
}

// freezerOf gives the file of a container's freezer; empty with cgroup v2.
func freezerOf(t *testing.T, h *lab.Host, id string) (path string) {
	t.Helper()
	root := h.CgroupRoot()
	if filepath.Base(root) != "freezer" {
		return ""
	}
	found, err := filepath.Glob(filepath.Join(root, "*", id, "freezer.state"))
	if err != nil || len(found) != 1 {
		t.Fatalf("freezers of %s: %q, %v", id, found, err)
	}
	return found[0]
}

func state(t *testing.T, freezer string) string {
	t.Helper()
	data, err := os.ReadFile(freezer)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(data))
}
