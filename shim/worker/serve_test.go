package worker

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/runtime/channel"
	"github.com/cryo-project/cryo/runtime/gpu"
)

// pair gives the process's descriptor, and the other's end.
func pair(t *testing.T) (descriptor int, other *channel.Channel) {
	t.Helper()
	other, file, err := channel.Pair()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { other.Close() })
	if descriptor, err = unix.Dup(int(file.Fd())); err != nil {
		t.Fatal(err)
	}
	file.Close()
	return descriptor, other
}

// process is a restore process as the shim sees it, of which this one plays the part.
func process(t *testing.T) (*Process, *Conversation) {
	t.Helper()
	descriptor, other := pair(t)
	c, err := channel.Open(descriptor)
	if err != nil {
		t.Fatal(err)
	}
	v := converse(c)
	v.Hear(func() {})
	p := &Process{channel: other, said: make(chan Message), ended: make(chan struct{}), patience: time.Minute}
	go func() {
		p.listen()
		close(p.ended)
	}()
	return p, v
}

// TestServe: the request arrives, large messages too, and the end of who asks is heard.
func TestServe(t *testing.T) {
	descriptor, other := pair(t)
	if err := other.Send(Message{Request: &Request{Protocol: protocol, Ref: "r:1"}}); err != nil {
		t.Fatal(err)
	}
	v, r, err := Serve(descriptor)
	if err != nil || r.Ref != "r:1" {
		t.Fatalf("%+v, %v", r, err)
	}
	gone := make(chan struct{})
	v.Hear(func() { close(gone) })
	long := strings.Repeat("x", 3*channel.MaxMessage)
	v.Tell(Message{Warnings: []string{long}})
	var m Message
	if _, err := other.Receive(&m); err != nil || !slices.Equal(m.Warnings, []string{long}) {
		t.Fatalf("a long message does not arrive: %v", err)
	}
	other.Close()
	<-gone
	if _, ok, err := v.Next(t.Context()); ok || err != nil {
		t.Errorf("after the end comes %v, %v", ok, err)
	}
	v.Close()
}

// TestServeVersion: a program of another version is refused with what to do.
func TestServeVersion(t *testing.T) {
	for _, request := range []Request{{Protocol: protocol + 1}, {Protocol: previous, Checkpoint: &Checkpoint{}}, {Protocol: protocol, Asked: previous}} {
		descriptor, other := pair(t)
		if err := other.Send(Message{Request: &request}); err != nil {
			t.Fatal(err)
		}
		if _, _, err := Serve(descriptor); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("it goes on with %v", err)
		}
		var m Message
		if _, err := other.Receive(&m); err != nil || m.Failed == nil || m.Failed.Hint() == "" {
			t.Errorf("it says %+v, %v", m, err)
		}
	}
}

// TestProcess has a shim ask whether the container may run, and why a restore failed, and say that the container runs.
func TestProcess(t *testing.T) {
	work := t.TempDir()
	if err := os.WriteFile(filepath.Join(work, "lock"), nil, 0o600); err != nil { // no process has it locked
		t.Fatal(err)
	}
	p, v := process(t)
	go func() {
		defer v.Close()
		v.Tell(Message{Prepared: &Prepared{Work: work + "/criu", Images: "a"}})
		for {
			m, ok, _ := v.Next(t.Context())
			switch {
			case m.Fill != nil:
				c, err := m.Channel()
				if err != nil || m.Fill.Rate != 7 {
					t.Errorf("to fill at %d: %v", m.Fill.Rate, err)
				}
				c.Close()
				if _, err := m.File("more"); err == nil {
					t.Error("a file is there that no process has sent")
				}
			case m.Running != nil, !ok:
				return
			case m.Commit:
				v.Tell(Message{Failed: failure.New(errdefs.ErrAborted, "", "called off")})
			case m.Failed != nil && m.Failed.Message == "known":
				v.Tell(Message{Failed: failure.New(errdefs.ErrUnavailable, "wait", "the registry is away")})
			case m.Failed != nil:
				v.Tell(Message{Failed: m.Failed})
			}
		}
	}()
	_, prepared, err := p.prepare(t.Context())
	if err != nil || prepared.Images != "a" {
		t.Fatalf("%+v, %v", prepared, err)
	}
	if err := p.Commit(); !errdefs.IsAborted(err) {
		t.Errorf("it may run: %v", err)
	}
	if err := p.Because(errors.New("known")); !errdefs.IsUnavailable(err) || failure.Hint(err) != "wait" {
		t.Errorf("the reason is %v", err)
	}
	if err := errors.New("unknown"); p.Because(err) != err {
		t.Error("a reason is given that is none")
	}
	own, other, err := channel.Pair()
	if err != nil {
		t.Fatal(err)
	}
	err = p.Fill(other, 7)
	other.Close()
	if _, closed := own.Receive(&struct{}{}); err != nil || closed == nil {
		t.Errorf("the channel arrives with %v, and is closed with %v", err, closed)
	}
	own.Close()
	if err := p.Running(gpu.Loaded{}); err != nil {
		t.Error(err)
	}
	p.Let()
	if err := p.Commit(); !errdefs.IsUnavailable(err) {
		t.Errorf("after its end it may run: %v", err)
	}
	if _, err := os.Stat(work); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what it has left is not removed: %v", err)
	}
	if err := (*Process)(nil).Commit(); err != nil {
		t.Errorf("without a process: %v", err)
	}
}

// TestDied: a process that ends without a word is told from one that says why.
func TestDied(t *testing.T) {
	p, v := process(t)
	v.Close()
	if err := p.Commit(); !errors.Is(err, ErrDied) {
		t.Errorf("it gives %v", err)
	}
}

// served runs the process's side, and gives the shim's end.
func served(t *testing.T, do func(context.Context, Request, *Shim) (*Taken, []string, error)) (_ *channel.Channel, ended chan error) {
	t.Helper()
	fd, own := pair(t)
	ended = make(chan error, 1)
	go func() { ended <- ServeCheckpoint(fd, do) }()
	return own, ended
}

// TestServeCheckpoint has the process answer with a snapshot, and with an error.
func TestServeCheckpoint(t *testing.T) {
	for _, failed := range []error{nil, failure.New(errdefs.ErrPermissionDenied, "do this", "it may not be")} {
		own, ended := served(t, func(_ context.Context, r Request, _ *Shim) (*Taken, []string, error) {
			if failed != nil {
				return nil, []string{"look"}, failed
			}
			return &Taken{Reference: r.Checkpoint.To}, []string{"look"}, nil
		})
		if err := own.Send(Message{Request: &Request{Protocol: protocol, Checkpoint: &Checkpoint{To: "registry.example.com/a:1"}}}); err != nil {
			t.Fatal(err)
		}
		var a Message
		if _, err := own.Receive(&a); err != nil {
			t.Fatal(err)
		}
		if len(a.Warnings) != 1 || (failed == nil) != (a.Taken != nil) {
			t.Errorf("got %+v", a)
		}
		if failed != nil && (!errors.Is(a.Failed, errdefs.ErrPermissionDenied) || a.Failed.Hint() != "do this") {
			t.Errorf("got %v", a.Failed)
		}
		if err := <-ended; !errors.Is(err, failed) {
			t.Errorf("it ended with %v", err)
		}
	}
}

// TestServeCheckpointRestore: a checkpoint process does nothing for a request that is a restore's.
func TestServeCheckpointRestore(t *testing.T) {
	own, ended := served(t, func(context.Context, Request, *Shim) (*Taken, []string, error) { panic("it begins") })
	if err := own.Send(Message{Request: &Request{Protocol: protocol}}); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errdefs.IsInvalidArgument(err) {
		t.Errorf("it ended with %v", err)
	}
}
