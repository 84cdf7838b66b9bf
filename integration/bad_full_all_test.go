package integration

import (
	"fmt"
	"testing"
)

// TestBadFullCheckpoint has room for nothing, for CRIU's images but hardly any memory, and for parts of the memory. The
// container holds 64 MiB that do not compress, which are written once.
func TestBadFullCheckpoint(t *testing.T) {
	a, _ := pair(t)
	id := name(t)
	start(t, a, id, nil, "workload", "count", "--memory", "64")
	for _, mib := range []int{1, 10, 40, 60} {
		t.Run(fmt.Sprintf("%d MiB", mib), func(t *testing.T) {
			inside, outside := small(t, a, mib)
			for _, leave := range []string{"true", "false"} {
				refused(t, a, codeFull, "o space left", "checkpoint", id, "bad/full:1", "--segment-size=8MiB", "--leave-running="+leave, "--root", inside)
				counts(t, a, id)
				empty(t, outside)
			}
		})
	}
	inside, _ := small(t, a, 80)
	must(t, a.Cryo(t.Context(), "checkpoint", id, "bad/full:1", "--leave-running", "--root", inside))
	counts(t, a, id)
}
