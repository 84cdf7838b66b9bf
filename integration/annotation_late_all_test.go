package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestAnnotationLate has CRIU fail in a pod's container that is to be started where it cannot be restored: its task fails with the reason, nothing is left, and no client hears
// of a start. The kubelet creates the container again, which is started.
func TestAnnotationLate(t *testing.T) {
	a, _ := pair(t)
	from := filepath.Join(a.Dir, "volumes", name(t))
	settings(t, from, "here")
	mount := func(source string) []string {
		return []string{"--mount", "type=bind,src=" + source + ",dst=/data,options=rbind:rw"}
	}
	path, _ := pushedMarked(t, mount(from+"/data"), "volumes", "/data")
	ref := shared.registry.Reference(path)
	h := annotationHost(t, "late", shared.registry.Address)
	heard := eventsOf(t, h)
	must(t, h.Cryo(t.Context(), "pull", ref, "--plain-http"))
	empty := filepath.Join(h.Dir, "empty")
	if err := os.Mkdir(empty, 0o755); err != nil {
		t.Fatal(err)
	}
	flags := append(mount(empty), "--annotation", fallbackAnnotation+"=start", "--annotation", "io.kubernetes.cri.container-type=container", "--annotation", "io.kubernetes.cri.container-name=app")
	unchanged(t, h, func() {
		id := name(t)
		if r := runFrom(t, h, id, ref, append(flags, "--annotation", restartCount+"=0"), "sleep", "1000"); r.Code == 0 || !strings.Contains(r.Stderr, "CRIU: ") {
			t.Errorf("exit status %d: %s", r.Code, r.Stderr)
		}
		h.Ctr(t.Context(), "tasks", "delete", "--force", id)
		changed(t, h, id)
		remove(t.Context(), h, id)
		heard.nothing(t, id)
		again := name(t)
		must(t, runFrom(t, h, again, ref, append(flags, "--annotation", restartCount+"=1"), "sleep", "1000"))
		if _, status, err := h.Task(t.Context(), again); status != "RUNNING" {
			t.Errorf("it is %q, %v", status, err)
		}
		eventually(t, "the reason", 10*time.Second, func() bool {
			heard.mu.Lock()
			defer heard.mu.Unlock()
			return strings.HasPrefix(heard.reasons[again], "restart: ")
		})
		remove(t.Context(), h, again)
	})
	if left := restorers(t, h); len(left) > 0 {
		t.Errorf("restore processes %v", left)
	}
}
