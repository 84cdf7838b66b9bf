package integration

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// The tests whose names begin with TestBad give cryo what it must refuse, or break it off. All of them compare the
// traces of a host from before and after: what failed has changed nothing.

// trace waits until the commands before have come to their end, and returns [lab.Host.Trace]. A restore process ends a moment after its container, or when all memory is there. A review ends after
// the process that has asked for it. A command removes its lease last.
func trace(t *testing.T, h *lab.Host) []string {
	t.Helper()
	busy := func() bool {
		return slices.ContainsFunc(processes(t, h), func(p process) bool { return p.command == "cryo-restore" || p.command == "cryo-review" })
	}
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		late := time.Now().After(deadline)
		if busy() && !late {
			continue
		}
		found, err := h.Trace(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if late || !slices.ContainsFunc(found, func(line string) bool { return strings.HasPrefix(line, "lease ") }) {
			return found
		}
	}
}

// traceStore is [lab.TraceStore].
func traceStore(t *testing.T, root string) []string {
	t.Helper()
	found, err := lab.TraceStore(root)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// abandonedSockets begin the lines of the sockets of shims. Where containerd kills the start of a shim because its client is
// gone, or the task is deleted before containerd has noticed the death of its shim, they stay until the next of that name.
func abandonedSockets(h *lab.Host) string { return "file " + h.Dir + "/run/containerd/s/" }

// unchanged runs do and wants the host to be as it was before, soon after. Lines that begin with one of except do not
// count.
func unchanged(t *testing.T, h *lab.Host, do func(), except ...string) {
	t.Helper()
	before := trace(t, h)
	do()
	wantTrace(t, h, before, except...)
}

// wantTrace waits until a host's trace is as wanted, for at most some seconds.
func wantTrace(t *testing.T, h *lab.Host, want []string, except ...string) {
	t.Helper()
	wantTraceWithin(t, h, 8*time.Second, want, except...)
}

// wantTraceWithin is [wantTrace] for what takes longer.
func wantTraceWithin(t *testing.T, h *lab.Host, within time.Duration, want []string, except ...string) {
	t.Helper()
	for deadline := time.Now().Add(within); ; time.Sleep(50 * time.Millisecond) {
		got := trace(t, h)
		news, lost := without(got, want, except), without(want, got, except)
		if len(news)+len(lost) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("%s changed.\nMore than before:\n  %s\nLess than before:\n  %s", h.Name, strings.Join(news, "\n  "), strings.Join(lost, "\n  "))
			return
		}
	}
}

// without gives the lines that are not among others and do not begin with one of except.
func without(lines, others, except []string) (left []string) {
	for _, line := range lines {
		begins := func(with string) bool { return strings.HasPrefix(line, with) }
		if !slices.Contains(others, line) && !slices.ContainsFunc(except, begins) {
			left = append(left, line)
		}
	}
	return left
}
