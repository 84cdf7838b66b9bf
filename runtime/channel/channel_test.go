package channel

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// ends are both of a pair.
func ends(t *testing.T) (a, b *Channel) {
	t.Helper()
	a, other, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Dup(int(other.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	other.Close()
	if b, err = Open(fd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		a.Close()
		b.Close()
	})
	return a, b
}

type said struct{ Words string }

func TestDescriptors(t *testing.T) {
	a, b := ends(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	many := make([]int, MaxDescriptors)
	for i := range many {
		many[i] = int(w.Fd())
	}
	for _, fds := range [][]int{nil, many[:1], many} {
		if err := a.Send(said{"hello"}, fds...); err != nil {
			t.Fatal(err)
		}
		var got said
		came, err := b.Receive(&got)
		if err != nil || got.Words != "hello" || len(came) != len(fds) {
			t.Fatalf("%+v, %d descriptors, %v", got, len(came), err)
		}
		for _, fd := range came {
			if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
				t.Errorf("descriptor %d is inherited: %v", fd, err)
			}
		}
		Close(came)
	}
	if err := a.Send(said{}, append(many, many[0])...); !errors.Is(err, unix.EMSGSIZE) {
		t.Errorf("too many: %v", err)
	}
	w.Close()
	if _, err := r.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("somebody has the pipe still: %v", err)
	}
}

func TestEnd(t *testing.T) {
	a, b := ends(t)
	if err := a.Send(said{"the last"}); err != nil {
		t.Fatal(err)
	}
	a.Close()
	var got said
	if _, err := b.Receive(&got); err != nil || got.Words != "the last" {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := b.Receive(&got); !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %v", err)
	}
	if err := b.Send(got); !errors.Is(err, unix.EPIPE) {
		t.Errorf("to nobody: %v", err)
	}
}

// TestUnread: a process closes its end with a message unread. What it has sent arrives all the same.
func TestUnread(t *testing.T) {
	a, b := ends(t)
	for _, c := range []struct {
		from *Channel
		word string
	}{{b, "unread"}, {a, "first"}, {a, "last"}} {
		if err := c.from.Send(said{c.word}); err != nil {
			t.Fatal(err)
		}
	}
	a.Close()
	for _, want := range []string{"first", "last"} {
		var got said
		if _, err := b.Receive(&got); err != nil || got.Words != want {
			t.Fatalf("%+v, %v", got, err)
		}
	}
	if _, err := b.Receive(&said{}); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
}

func TestNoMessage(t *testing.T) {
	a, b := ends(t)
	if err := a.Send(said{strings.Repeat("x", MaxFile)}); !errors.Is(err, unix.EMSGSIZE) {
		t.Errorf("a long one: %v", err)
	}
	if err := a.Send(make(chan int)); err == nil {
		t.Error("a channel was sent")
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := a.Send(json.RawMessage(`"words"`), int(w.Fd())); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if _, err := b.Receive(&said{}); err == nil {
		t.Error("a string is no struct")
	}
	if _, err := r.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("its descriptor is open still: %v", err)
	}
}

// TestLong: what is too long for a message arrives all the same, with its descriptors.
func TestLong(t *testing.T) {
	a, b := ends(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	want := said{strings.Repeat("x", 20*MaxMessage)}
	if err := a.Send(want, int(w.Fd())); err != nil {
		t.Fatal(err)
	}
	w.Close()
	var got said
	fds, err := b.Receive(&got)
	if err != nil || got != want || len(fds) != 1 {
		t.Fatalf("%d bytes, %d descriptors, %v", len(got.Words), len(fds), err)
	}
	if _, err := unix.Write(fds[0], []byte("y")); err != nil {
		t.Error(err)
	}
	Close(fds)
	one := make([]byte, 2)
	if n, err := r.Read(one); n != 1 || err != nil {
		t.Errorf("through its descriptor come %d bytes, %v", n, err)
	}
}

// TestExpect: it opens nothing, and is content with what there can be.
func TestExpect(t *testing.T) {
	size := func() int {
		data, err := os.ReadFile("/proc/self/status")
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(data), "FDSize:")
		n, err := strconv.Atoi(strings.Fields(rest)[0])
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	open := func() int {
		all, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	before, files := size(), open()
	Expect(2 * before)
	if now := size(); now <= 2*before {
		t.Errorf("there is room for %d descriptors, before for %d", now, before)
	}
	Expect(1 << 30)
	if now := open(); now != files {
		t.Errorf("%d descriptors are open, before %d", now, files)
	}
}
