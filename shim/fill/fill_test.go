package fill

import (
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/shim/order"
)

// channels are both ends.
func channels(t *testing.T) (a, b line) {
	t.Helper()
	a, other, err := newPair()
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	fd, err := unix.Dup(int(other.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	if b, err = newLine(fd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		a.Close()
		b.Close()
	})
	return a, b
}

func TestChannel(t *testing.T) {
	a, b := channels(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := errors.Join(a.send(message{Ready: true}, -1), a.send(message{Hold: 7}, int(w.Fd())), w.Close()); err != nil {
		t.Fatal(err)
	}
	if m, fd, err := b.receive(); err != nil || !m.Ready || fd >= 0 {
		t.Errorf("gives %+v, %d, %v", m, fd, err)
	}
	m, fd, err := b.receive()
	if err != nil || m.Hold != 7 || fd < 0 {
		t.Fatalf("gives %+v, %d, %v", m, fd, err)
	}
	if _, err := unix.Write(fd, []byte("x")); err != nil {
		t.Error(err)
	}
	if err := unix.Close(fd); err != nil {
		t.Error(err)
	}
	if got, err := io.ReadAll(r); string(got) != "x" || err != nil {
		t.Errorf("through the descriptor came %q, %v", got, err)
	}
	a.Close()
	if _, _, err := b.receive(); !errors.Is(err, io.EOF) {
		t.Errorf("after the other end is closed: %v", err)
	}
	if err := b.send(message{Drop: 1}, -1); !errors.Is(err, unix.EPIPE) {
		t.Errorf("to nobody: %v", err)
	}
}

// TestServeRefuses is the daemon with orders that it cannot carry out: it says why, and no process depends on it.
func TestServeRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		message message
		reason  string
	}{
		"no order":    {message{Restored: true}, "no order"},
		"no snapshot": {message{Order: &order.Order{Root: t.TempDir(), Images: t.TempDir(), Snapshot: ocispec.Descriptor{Digest: "sha256:x"}}}, "descriptor"},
	} {
		a, b := channels(t)
		if err := a.send(test.message, -1); err != nil {
			t.Fatal(err)
		}
		if f, _, err := serve(b); err == nil || f != nil || !strings.Contains(err.Error(), test.reason) {
			t.Errorf("%s gives %v", name, err)
		}
	}
}
