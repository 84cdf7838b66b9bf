package integration

import (
	"bufio"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestInsideCount has a container that counts and runs on after its snapshot. The restored one goes on from the
// snapshot, in a log of its own: no number is missing there nor twice, and the memory is equal.
func TestInsideCount(t *testing.T) {
	a, b := pair(t)
	j := journey{id: name(t), checkpoint: []string{"--leave-running"}}
	startImage(t, a, shared.image, j.id, nil, "workload", "count", "--memory", "64", "--fill", "mixed")
	first := await(t, a, j.id)
	checkpoint(t, a, j)
	left := await(t, a, j.id)
	j.restore = []string{"--log-uri", "file://" + filepath.Join(b.Dir, "logs", j.id)}
	restored := restore(t, b, j)
	goneOn(t, first, left)
	goneOn(t, first, restored)
	if restored.State["sha256"] != first.State["sha256"] || left.State["sha256"] != first.State["sha256"] {
		t.Errorf("memory was %v, is %v and %v", first.State, left.State, restored.State)
	}
	eventually(t, "log", 30*time.Second, func() bool { return strings.Count(output(t, b, j.id), "\n") > 5 })
	last := int64(-1)
	for lines := bufio.NewScanner(strings.NewReader(output(t, b, j.id))); lines.Scan(); {
		var n int64
		if _, err := fmt.Sscanf(lines.Text(), "count %d", &n); err != nil || last >= 0 && n != last+1 || n < first.Count {
			t.Fatalf("after %d the restored container says %q (%v)", last, lines.Text(), err)
		}
		last = n
	}
}
