package integration

import (
	"strings"
	"testing"

	"github.com/cryo-project/cryo/integration/lab"
)

// harmless runs cryo on what is hostile: within bounds of time and memory, with no more than so many bytes of disk, and nothing outside of containers is touched. Without
// canaries of the caller's it has its own.
func harmless(t *testing.T, h *lab.Host, c *canaries, disk int64, args ...string) lab.Result {
	t.Helper()
	if c == nil {
		c = newCanaries(t, h)
	}
	before := c.look()
	r, most := measured(t, h, args...)
	affordable(t, r, most, disk)
	for _, change := range changes(before, c.look()) {
		t.Errorf("%s: %s", r.Command, change)
	}
	return r
}

// denied wants cryo to refuse a hostile snapshot by a rule, harmlessly, and to leave the host as it was.
func denied(t *testing.T, h *lab.Host, c *canaries, code int, rule, words string, args ...string) {
	t.Helper()
	before := trace(t, h)
	r := harmless(t, h, c, 128<<20, args...)
	refusal(t, r, code, words)
	if !strings.Contains(r.Stderr, "(rule "+rule+")") {
		t.Errorf("%s: it does not name the rule %s: %s", r.Command, rule, r.Stderr)
	}
	wantTrace(t, h, before, "blob ") // what was fetched is kept, for the next
}

// guarded wants nothing outside of containers to have changed on a host when the test has ended, and its containers are removed.
func guarded(t *testing.T, h *lab.Host) {
	t.Helper()
	c := newCanaries(t, h)
	before := c.look()
	t.Cleanup(func() {
		for _, change := range changes(before, c.look()) {
			t.Error(change)
		}
	})
}
