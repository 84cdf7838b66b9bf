package integration

import (
	"context"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// TestRegistryResume kills a push and a pull in the middle. The next one moves only what is missing, in total hardly more
// than once.
func TestRegistryResume(t *testing.T) {
	a, b := pair(t)
	r := newRegistry(t, "resumed", lab.RegistryOptions{})
	f := freeze(t, []string{"count", "--memory", "48"}, "--segment-size", "4MiB")
	size := inspect(t, a, f.ref).Size
	l := newLine(t, r)
	to := l.Address + "/resumed/" + f.id + ":1"
	away(t, to)
	for _, test := range []struct {
		name  string
		h     *lab.Host
		moved *atomic.Int64
		total int64 // bytes
		args  []string
		slack int64 // bytes moved that are moved again: an upload begins anew, a download with what is not written yet
	}{
		{"push", a, &l.Sent, size + blobsSize(t, fetched(t, shared.image)), []string{"push", f.ref, to, "--plain-http", "--concurrency", "2"}, 2 * 4 << 20},
		{"pull", b, &l.Received, size, []string{"pull", to, "--plain-http", "--concurrency", "2"}, 2 * 1 << 20},
	} {
		t.Run(test.name, func(t *testing.T) {
			total := test.total
			l.Pause.Store(int64(5 * time.Millisecond))
			killedAfter(t, test.h, test.moved, total/2, test.args...)
			l.Pause.Store(0)
			time.Sleep(100 * time.Millisecond) // what was under way arrives
			first := test.moved.Swap(0)
			must(t, test.h.Cryo(t.Context(), test.args...))
			second := test.moved.Load()
			t.Logf("%d of %d bytes before the kill, %d after it", first, total, second)
			const overhead = 128 << 10 // requests, headers, manifests
			if first < total/2 || second > total-first+test.slack+overhead {
				t.Errorf("%d of %d bytes were moved before the kill, and %d after it", first, total, second)
			}
			test.moved.Store(0)
			must(t, test.h.Cryo(t.Context(), test.args...))
			if again := test.moved.Load(); again > overhead {
				t.Errorf("%d bytes were moved although all was there", again)
			}
		})
	}
	must(t, b.Cryo(t.Context(), "verify", to))
	thaw(t, b, f, to)
}

// killedAfter runs cryo and kills it when a meter has counted some bytes.
func killedAfter(t *testing.T, h *lab.Host, moved *atomic.Int64, bytes int64, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	moved.Store(0)
	c := h.Command(ctx, "cryo", args...)
	ended := make(chan lab.Result, 1)
	go func() { ended <- lab.Finish(c) }()
	for moved.Load() < bytes {
		select {
		case result := <-ended:
			t.Fatalf("%s ended before it was killed: %+v", strings.Join(args, " "), result)
		case <-time.After(time.Millisecond):
		}
	}
	if err := c.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if result := <-ended; result.Code != codeKilled {
		t.Fatalf("want it killed: %+v", result)
	}
}
