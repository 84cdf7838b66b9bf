package integration

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// The exit codes of "cryo help exit-codes".
const (
	codeUsage        = 2
	codeNotFound     = 3
	codePrecondition = 4
	codeExists       = 5
	codeUnavailable  = 6
	codeDenied       = 7
	codeDamaged      = 8
	codeMisfit       = 9
	codeFull         = 10
	codeAborted      = 11
	codeLost         = 12
	codeDeadline     = 124
	codeInterrupted  = 130
	codeKilled       = 128 + int(syscall.SIGKILL)
)

// refused runs cryo, and wants it to fail with an exit code, words in its message, a hint, and nothing changed.
func refused(t *testing.T, h *lab.Host, code int, words string, args ...string) {
	t.Helper()
	unchanged(t, h, func() {
		t.Helper()
		refusal(t, h.Cryo(t.Context(), args...), code, words)
	})
}

// refusal wants a result of cryo to be a clear error.
func refusal(t *testing.T, r lab.Result, code int, words string) {
	t.Helper()
	if r.Code != code {
		t.Errorf("%s: exit code %d, want %d:\n%s%s", r.Command, r.Code, code, r.Stdout, r.Stderr)
		return
	}
	said := r.Stderr
	if strings.HasPrefix(said, "warning: signature: ") { // of snapshots that nobody has signed
		_, said, _ = strings.Cut(said, "\n")
	}
	if !strings.HasPrefix(said, "cryo: ") || !strings.Contains(r.Stderr, words) || !strings.Contains(r.Stderr, "\nhint: ") || r.Stdout != "" {
		t.Errorf("%s: want an error with %q and a hint, and nothing on standard output:\n%s%s", r.Command, words, r.Stdout, r.Stderr)
	}
}

// counts ends the test unless a container runs and goes on counting.
func counts(t *testing.T, h *lab.Host, id string) {
	t.Helper()
	first := await(t, h, id)
	eventually(t, id+" counts on", 30*time.Second, func() bool { return await(t, h, id).Count > first.Count })
}

// broken runs cryo and sends it a signal after a while.
func broken(t *testing.T, h *lab.Host, after time.Duration, sig syscall.Signal, args ...string) lab.Result {
	t.Helper()
	c := h.Command(t.Context(), "cryo", args...)
	c.WaitDelay = time.Minute
	return lab.Signalled(c, after, sig)
}

// snapshotOf takes a snapshot of a new workload on a host and removes the container. The snapshot goes with the test.
func snapshotOf(t *testing.T, h *lab.Host, workload ...string) (ref string) {
	t.Helper()
	id := name(t)
	ref = shared.registry.Reference("bad/" + id + ":1")
	pullBase(t, h)
	startImage(t, h, shared.image, id, nil, append([]string{"workload"}, workload...)...)
	await(t, h, id)
	must(t, h.Cryo(t.Context(), "checkpoint", id, ref))
	remove(t.Context(), h, id)
	forget(t, h, ref)
	return ref
}

// forget removes a snapshot from a host's store when the test ends, should it be there.
func forget(t *testing.T, h *lab.Host, ref string) {
	t.Helper()
	t.Cleanup(func() { h.Cryo(cleanupContext(t), "rm", ref) })
}
