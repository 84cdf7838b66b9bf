package integration

import (
	"strings"
	"testing"

	"github.com/cryo-project/cryo/integration/lab"
)

// TestBadDump has containers hold what CRIU cannot dump: CRIU's own reason arrives, and the container runs on. A TCP
// connection is another such thing, see TestInsideConnection.
func TestBadDump(t *testing.T) {
	a, _ := pair(t)
	for _, test := range []struct {
		name, words string
		workload    []string
	}{
		{"large deleted file", "Can't dump ghost file", []string{"undumpable", "--what", "ghost"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			id := name(t)
			start(t, a, id, nil, append([]string{"workload"}, test.workload...)...)
			for _, leave := range []string{"true", "false"} {
				refused(t, a, codePrecondition, test.words, "checkpoint", id, "bad/dump:1", "--leave-running="+leave)
				counts(t, a, id)
			}
			unchanged(t, a, func() { refusedStock(t, a, test.words, id) })
			counts(t, a, id)
		})
	}
}

// refusedStock wants the stock client's checkpoint to fail with words in its message.
func refusedStock(t *testing.T, h *lab.Host, words, id string) {
	t.Helper()
	if r := h.Ctr(t.Context(), "tasks", "checkpoint", id); r.Code == 0 || !strings.Contains(r.Stderr, words) {
		t.Errorf("%s: exit status %d, want %q in:\n%s", r.Command, r.Code, words, r.Stderr)
	}
}
