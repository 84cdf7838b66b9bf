package device

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// against runs one side with a peer that says these messages, then hangs up.
func against(t testing.TB, messages []message, run func(*Link) error) error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	a, b := os.NewFile(uintptr(pair[0]), "a"), os.NewFile(uintptr(pair[1]), "b")
	defer b.Close()
	m, err := NewRing(smallRing)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	l, err := OfferRing(a, m)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a.Close()
	l.Patience = 30 * time.Second
	peer, err := newConn(b)
	if err != nil {
		t.Fatal(err)
	}
	b.Close()
	defer peer.Close() // later than its end, as what it has not read would make that one of another kind
	told := make(chan struct{})
	go func() {
		defer close(told)
		defer peer.hangUp()
		for _, m := range messages {
			if peer.write(m) != nil {
				return
			}
		}
	}()
	err = run(l)
	l.Close()
	<-told
	return err
}

// TestReceiverIsTold: what a receiver does not believe, and a peer that is gone after each message.
func TestReceiverIsTold(t *testing.T) {
	page := smallRing.SlotBytes
	sizes := []int64{page * 2, 100}
	full := func(slot, piece int, offset, length int64) message {
		return message{Kind: kindFull, Slot: slot, Piece: piece, Offset: offset, Length: length}
	}
	for _, test := range []struct {
		name     string
		messages []message
		say      string // "": the peer is gone
	}{
		{"nothing", nil, ""},
		{"a slot", []message{full(0, 0, 0, page)}, ""},
		{"a slot that is kept, and the end", []message{full(0, 0, 0, page), {Kind: kindEnd}}, ""},
		{"more after the end", []message{full(0, 0, 0, page), {Kind: kindEnd}, {Kind: kindEnd}}, "after the end"},
		{"all slots", []message{full(0, 0, 0, page), full(1, 0, page, page), full(2, 1, 0, 100), full(3, 0, 0, 1)}, ""},
		{"the slot again", []message{full(0, 0, 0, page), full(0, 0, page, page)}, "slot 0, which it does not have"},
		{"a slot too many", []message{full(4, 0, 0, page)}, "slot 4, which it does not have"},
		{"a huge slot", []message{full(1<<32-1, 0, 0, page)}, "slot 4294967295"},
		{"a slot below all", []message{full(-1, 0, 0, page)}, "slot -1"},
		{"a piece too many", []message{full(0, 2, 0, 1)}, "piece 2 of 2"},
		{"a huge piece", []message{full(0, 1<<31, 0, 1)}, "piece 2147483648 of 2"},
		{"a piece below all", []message{full(0, -1, 0, 1)}, "piece -1 of 2"},
		{"no bytes", []message{full(0, 0, 0, 0)}, "0 bytes"},
		{"more than a slot", []message{full(0, 0, 0, page+1)}, "4097 bytes"},
		{"past the end", []message{full(0, 1, 1, 100)}, "100 bytes from 1"},
		{"from past the end", []message{full(0, 1, 101, 1)}, "1 bytes from 101"},
		{"from before the beginning", []message{full(0, 0, -1, 2)}, "2 bytes from -1"},
		{"around the end", []message{full(0, 0, 1<<63-1, 2)}, "2 bytes from 9223372036854775807"},
		{"a ring", []message{{Kind: kindRing, Slot: 1, Length: page}}, `"ring" from who sends`},
		{"free", []message{{Kind: kindFree}}, `"free" from who sends`},
		{"done", []message{{Kind: kindDone}}, `"done" from who sends`},
	} {
		err := against(t, test.messages, func(l *Link) error {
			return l.Receive(t.Context(), sizes, func(Chunk, func()) error { return nil })
		})
		told(t, test.name, err, test.say)
	}
}

// TestSenderIsTold is the same for who sends.
func TestSenderIsTold(t *testing.T) {
	sizes := []int64{smallRing.SlotBytes * 8}
	for _, test := range []struct {
		name     string
		messages []message
		say      string
	}{
		{"nothing", nil, ""},
		{"a slot that it has not", []message{{Kind: kindFree, Slot: 3}}, "frees slot 3"},
		{"a huge slot", []message{{Kind: kindFree, Slot: 1 << 31}}, "frees slot 2147483648"},
		{"done", []message{{Kind: kindDone}}, "done before"},
		{"end", []message{{Kind: kindEnd}}, `"end" from who receives`},
		{"full", []message{{Kind: kindFull, Length: 1}}, `"full" from who receives`},
	} {
		err := against(t, test.messages, func(l *Link) error {
			return l.Send(t.Context(), sizes, func(ctx context.Context, _ *Sender) error {
				<-ctx.Done() // nothing is sent by then
				return context.Cause(ctx)
			})
		})
		told(t, test.name, err, test.say)
	}
	// A peer that is gone after each of its messages.
	for n := range smallRing.Slots {
		err := against(t, nil, func(l *Link) error {
			return l.Send(t.Context(), sizes, func(ctx context.Context, s *Sender) error {
				for at := range n + 1 {
					if err := s.Put(ctx, 0, int64(at), func([]byte) (int, error) { return 1, nil }); err != nil {
						return err
					}
				}
				return nil
			})
		})
		told(t, "gone", err, "")
	}
}

func told(t *testing.T, name string, err error, say string) {
	t.Helper()
	if say == "" {
		if !errors.Is(err, ErrHungUp) || !errdefs.IsAborted(err) {
			t.Errorf("%s: %v", name, err)
		}
	} else if err == nil || !strings.Contains(err.Error(), say) || !errdefs.IsInvalidArgument(err) {
		t.Errorf("%s: %v, not %q", name, err, say)
	}
}

// TestStrange: bytes that are no message.
func TestStrange(t *testing.T) {
	for name, data := range map[string]string{
		"half of one": `{"kind":"end"`, "two": `{"kind":"end"}{"kind":"end"}`, "another type": `{"kind":7}`, "a list": `[]`, "a fraction": `{"kind":"full","slot":0.5}`,
	} {
		a, b := ringSockets(t)
		c, err := newConn(b)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := a.Write([]byte(data)); err != nil {
			t.Fatal(err)
		}
		if m, err := c.read(); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %+v, %v", name, m, err)
		}
		c.Close()
	}
}

// TestFiles: those that come with a message are closed.
func TestFiles(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for _, n := range []int{1, 2, 6, 200} {
		a, b := ringSockets(t)
		c, err := newConn(b)
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Sendmsg(int(a.Fd()), []byte(`{"kind":"end"}`), unix.UnixRights(slices.Repeat([]int{int(w.Fd())}, n)...), nil, 0); err != nil {
			t.Fatal(err)
		}
		if m, err := c.read(); err == nil {
			t.Errorf("%d: %+v", n, m)
		}
		c.Close()
	}
	w.Close()
	if n, err := r.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("somebody has the pipe still: %d, %v", n, err)
	}
}

// FuzzPeer has a peer say anything to both sides. Slots that were passed on are within the ring, and of one owner.
func FuzzPeer(f *testing.F) {
	f.Add([]byte{2, 0, 0, 0, 1, 2, 1, 0, 0, 9, 3, 0, 0, 0, 0, 4, 0, 0, 0, 0}, true)
	f.Add([]byte{3, 0, 0, 0, 0, 5, 0, 0, 0, 0}, false)
	kinds := []string{"", kindRing, kindFull, kindFree, kindEnd, kindDone, kindWait}
	f.Fuzz(func(t *testing.T, script []byte, receive bool) {
		var messages []message
		for b := script; len(b) >= 5; b = b[5:] {
			messages = append(messages, message{
				Kind: kinds[b[0]%7], Slot: int(b[1]%7) - 1, Piece: int(b[2]%5) - 1, Offset: int64(int8(b[3])) << 4, Length: int64(binary.LittleEndian.Uint16(b[3:])),
			})
		}
		sizes := []int64{smallRing.SlotBytes, 100, 0}
		var err error
		if receive {
			held := make(map[*byte]bool)
			err = against(t, messages, func(l *Link) error {
				return l.Receive(t.Context(), sizes, func(c Chunk, release func()) error {
					if held[&c.Data[0]] || c.Offset+int64(len(c.Data)) > sizes[c.Piece] {
						t.Errorf("gives %d bytes at %d of piece %d", len(c.Data), c.Offset, c.Piece)
					}
					held[&c.Data[0]] = true
					if c.Offset%32 == 0 {
						held[&c.Data[0]] = false
						release()
					}
					return nil
				})
			})
		} else {
			err = against(t, messages, func(l *Link) error {
				return l.Send(t.Context(), sizes, func(ctx context.Context, s *Sender) error {
					for range 3 {
						if err := s.Put(ctx, 0, 0, func([]byte) (int, error) { return 1, nil }); err != nil {
							return err
						}
					}
					return nil
				})
			})
		}
		if err != nil && !errdefs.IsInvalidArgument(err) && !errors.Is(err, ErrHungUp) {
			t.Error(err)
		}
	})
}
