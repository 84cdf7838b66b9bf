package worker

import (
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/integration/storetest"
	"github.com/cryo-project/cryo/runtime/channel"
)

// channels are both ends.
func channels(t *testing.T) (a, b link) {
	t.Helper()
	own, other, err := channel.Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	fd, err := unix.Dup(int(other.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	c, err := channel.Open(fd)
	if err != nil {
		t.Fatal(err)
	}
	a, b = link{own}, link{c}
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
	if err := errors.Join(a.Send(message{Ready: true}), a.Send(message{Hold: 7}, int(w.Fd())), w.Close()); err != nil {
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
	if err := b.Send(message{Drop: 1}); !errors.Is(err, unix.EPIPE) {
		t.Errorf("to nobody: %v", err)
	}
}

// TestServeRefuses is the server with a snapshot that it cannot open: it says why, and no process depends on it.
func TestServeRefuses(t *testing.T) {
	a, b := channels(t)
	m := HostMemory{From: storetest.Open(t), Images: t.TempDir(), Snapshot: ocispec.Descriptor{Digest: "sha256:x"}}
	served := make(chan error, 1)
	go func() { served <- m.Serve(t.Context(), b.Channel) }()
	if m, _, err := a.receive(); err != nil || m.Failed == nil || !strings.Contains(m.Failed.Message, "descriptor") {
		t.Errorf("it says %+v, %v", m, err)
	}
	a.Close()
	if err := <-served; err == nil {
		t.Error("it succeeds")
	}
}
