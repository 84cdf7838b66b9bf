package save

import (
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/runtime/runc"
)

// A small container has several segments, a large one not too many for a manifest.
func TestSegmentSize(t *testing.T) {
	for _, c := range []struct {
		gpus         bool
		memory, want int64
	}{
		{false, 1 << 20, 64 << 20},
		{false, 16 << 30, 64 << 20},
		{false, 16<<30 + 1, 256 << 20},
		{true, 1 << 20, 256 << 20},
	} {
		if got := segmentSize(c.gpus, c.memory); got != c.want {
			t.Errorf("%d bytes of memory, GPUs %t: %d, want %d", c.memory, c.gpus, got, c.want)
		}
	}
}

// The first process of the container has ended, and its parent has not waited for it. The kernel has freed its network namespace, so the addresses cannot be read, and the error is that the container is not running.
func TestAddressesEnded(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Wait() }()
	defer func() { _ = cmd.Process.Kill() }()
	started, err := runc.Started(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	p := firstProcess{pid: cmd.Process.Pid, started: started, shim: os.Getpid()}
	if _, err := p.addresses("c"); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); !runc.Ended(p.pid); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it does not end")
		}
	}
	if _, err := p.addresses("c"); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "not running") {
		t.Errorf("got %v", err)
	}
}

// The memory of descendants counts, and what has ended has none.
func TestResident(t *testing.T) {
	// The second shell has 32 MiB in a variable, and says when.
	cmd := exec.Command("sh", "-c", `sh -c 'x=$(head -c 33554432 /dev/zero | tr "\0" x); echo; read y; : $x' <&0; :`)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if all, own := resident(cmd.Process.Pid); own < 32<<20 || own >= all || all > 1<<30 {
		t.Errorf("a shell and its child have %d bytes, of which %d are their own", all, own)
	}
	in.Close()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if all, own := resident(cmd.Process.Pid); all != 0 || own != 0 {
		t.Errorf("what has ended has %d bytes, of which %d are its own", all, own)
	}
}
