package integration

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// pair is the two shared hosts.
func pair(t *testing.T) (a, b *lab.Host) {
	t.Helper()
	return shared.a, shared.b
}

// newHost is a host of the test's own, with the base image.
func newHost(t *testing.T, name string, o lab.HostOptions) *lab.Host {
	t.Helper()
	h := emptyHost(t, name, o)
	if err := h.Import(t.Context()); err != nil {
		t.Fatal(err)
	}
	return h
}

// emptyHost is a host of the test's own, without any image.
func emptyHost(t *testing.T, name string, o lab.HostOptions) *lab.Host {
	t.Helper()
	h, err := shared.lab.Host(t.Context(), name, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, leak := range h.Leaks() {
			t.Error("left behind:", leak)
		}
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

// must ends the test unless the command succeeded.
func must(t *testing.T, r lab.Result) lab.Result {
	t.Helper()
	if err := r.Err(); err != nil {
		t.Fatal(err)
	}
	return r
}

// name is a container's name that no other test has.
func name(t *testing.T) string {
	t.Helper()
	base := strings.Trim(notName.ReplaceAllString(strings.ToLower(t.Name()), "-"), "-")
	base = strings.TrimLeft(base[max(0, len(base)-40):], "-")
	return base + "-" + strings.ToLower(rand.Text()[:6])
}

// notName is what containerd does not take in a name.
var notName = regexp.MustCompile("[^a-z0-9]+")

// runtimes are the names of the runtime under test and, where only the harness is, of runc's.
const (
	runcRuntime = "io.containerd.runc.v2"
	cryoRuntime = "io.containerd.cryo.v1"
)

// start runs a container of the base image in the background, and the workload in it as args say, and waits for its
// answer. The flags are those of "ctr run"; unless they name another, the runtime is cryo's.
func start(t *testing.T, h *lab.Host, id string, flags []string, args ...string) {
	t.Helper()
	startImage(t, h, lab.ImageName, id, flags, args...)
	await(t, h, id)
}

// startImage is start with another image, without waiting.
func startImage(t *testing.T, h *lab.Host, image, id string, flags []string, args ...string) {
	t.Helper()
	if !slices.Contains(flags, "--runtime") {
		flags = append([]string{"--runtime", cryoRuntime}, flags...)
	}
	if !slices.Contains(flags, "--tty") && !slices.Contains(flags, "--null-io") {
		flags = append([]string{"--log-uri", "file://" + logFile(h, id)}, flags...)
	}
	all := slices.Concat([]string{"run", "--detach"}, flags, []string{image, id}, args)
	cleanup(t, h, id)
	must(t, h.Ctr(t.Context(), all...))
}

// logFile is where a container that [start] started has its output, unless it has a terminal or --null-io.
func logFile(h *lab.Host, id string) string { return filepath.Join(h.Dir, "logs", id) }

// output is what is in [logFile]; nothing if there is none.
func output(t *testing.T, h *lab.Host, id string) string {
	t.Helper()
	content, err := os.ReadFile(logFile(h, id))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return string(content)
}

// cleanup removes a container and its task when the test ends, should they be there.
func cleanup(t *testing.T, h *lab.Host, id string) {
	t.Helper()
	t.Cleanup(func() {
		remove(cleanupContext(t), h, id)
	})
}

// cleanupContext is for commands in t.Cleanup, where the test's own context has ended.
func cleanupContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// remove removes a container, its task and its snapshot, whatever there is of them.
func remove(ctx context.Context, h *lab.Host, id string) {
	_ = h.Remove(ctx, id) // there may be none
}

// await waits until the workload answers, and ends the test where it does not or where its state is not whole.
func await(t *testing.T, h *lab.Host, id string) lab.Answer {
	t.Helper()
	a, err := h.AwaitAnswer(t.Context(), id)
	if err != nil {
		t.Fatalf("%v\noutput:\n%s", err, output(t, h, id))
	}
	if !a.OK {
		t.Fatalf("%s on %s is damaged: %s", id, h.Name, a.Error)
	}
	return a
}

// eventually repeats a check for at most the given time.
func eventually(t *testing.T, what string, within time.Duration, check func() bool) {
	t.Helper()
	for deadline := time.Now().Add(within); ; time.Sleep(20 * time.Millisecond) {
		if check() {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %s", what, within)
		}
	}
}
