package ring

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
	m, err := New(small)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	l, err := Offer(a, m)
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
	defer peer.close() // later than its end, as what it has not read would make that one of another kind
	told := make(chan struct{})
	go func() {
		defer close(told)
		defer peer.hangUp()
		for _, m := range messages {
			if peer.write(m, nil) != nil {
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
	page := uint64(small.SlotBytes)
	sizes := []int64{int64(page) * 2, 100}
	full := func(slot, piece uint32, offset, length uint64) message {
		return message{kind: kindFull, slot: slot, piece: piece, offset: offset, length: length}
	}
	for _, test := range []struct {
		name     string
		messages []message
		say      string // "": the peer is gone
	}{
		{"nothing", nil, ""},
		{"a slot", []message{full(0, 0, 0, page)}, ""},
		{"a slot that is kept, and the end", []message{full(0, 0, 0, page), {kind: kindEnd}}, ""},
		{"more after the end", []message{full(0, 0, 0, page), {kind: kindEnd}, {kind: kindEnd}}, "after the end"},
		{"all slots", []message{full(0, 0, 0, page), full(1, 0, page, page), full(2, 1, 0, 100), full(3, 0, 0, 1)}, ""},
		{"the slot again", []message{full(0, 0, 0, page), full(0, 0, page, page)}, "slot 0, which it does not have"},
		{"a slot too many", []message{full(4, 0, 0, page)}, "slot 4, which it does not have"},
		{"a huge slot", []message{full(1<<32-1, 0, 0, page)}, "slot 4294967295"},
		{"a piece too many", []message{full(0, 2, 0, 1)}, "piece 2 of 2"},
		{"a huge piece", []message{full(0, 1<<31, 0, 1)}, "piece 2147483648 of 2"},
		{"no bytes", []message{full(0, 0, 0, 0)}, "0 bytes"},
		{"more than a slot", []message{full(0, 0, 0, page+1)}, "4097 bytes"},
		{"past the end", []message{full(0, 1, 1, 100)}, "100 bytes from 1"},
		{"from past the end", []message{full(0, 1, 101, 1)}, "1 bytes from 101"},
		{"around the end", []message{full(0, 0, 1<<64-1, 2)}, "2 bytes from 18446744073709551615"},
		{"a ring", []message{{kind: kindRing, slot: 1, length: page}}, "kind 1 from who sends"},
		{"free", []message{{kind: kindFree}}, "kind 3 from who sends"},
		{"done", []message{{kind: kindDone}}, "kind 5 from who sends"},
	} {
		err := against(t, test.messages, func(l *Link) error {
			return l.Receive(t.Context(), sizes, func(Chunk, func()) error { return nil })
		})
		told(t, test.name, err, test.say)
	}
}

// TestSenderIsTold is the same for who sends.
func TestSenderIsTold(t *testing.T) {
	sizes := []int64{small.SlotBytes * 8}
	for _, test := range []struct {
		name     string
		messages []message
		say      string
	}{
		{"nothing", nil, ""},
		{"a slot that it has not", []message{{kind: kindFree, slot: 3}}, "frees slot 3"},
		{"a huge slot", []message{{kind: kindFree, slot: 1 << 31}}, "frees slot 2147483648"},
		{"done", []message{{kind: kindDone}}, "done before"},
		{"end", []message{{kind: kindEnd}}, "kind 4 from who receives"},
		{"full", []message{{kind: kindFull, length: 1}}, "kind 2 from who receives"},
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
	for n := range small.Slots {
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
		if !errors.As(err, new(*GoneError)) || !errdefs.IsAborted(err) {
			t.Errorf("%s: %v", name, err)
		}
	} else if err == nil || !strings.Contains(err.Error(), say) || !errdefs.IsInvalidArgument(err) {
		t.Errorf("%s: %v, not %q", name, err, say)
	}
}

// TestStrange: bytes that are no message.
func TestStrange(t *testing.T) {
	whole := message{kind: kindEnd}.encode()
	for name, data := range map[string][]byte{
		"short, then the end": whole[:31],
		"long":                append(whole[:], 0),
		"of zeros":            make([]byte, messageSize),
		"another version":     func() []byte { b := whole; b[4] = 2; return b[:] }(),
		"another kind":        func() []byte { b := whole; b[6] = 9; return b[:] }(),
		"more than it has":    func() []byte { b := whole; b[31] = 1; return b[:] }(),
	} {
		a, b := sockets(t)
		c, err := newConn(b)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := a.Write(data); err != nil {
			t.Fatal(err)
		}
		a.Close()
		if m, _, err := c.read(); err == nil {
			t.Errorf("%s: %+v", name, m)
		}
		c.close()
	}
}

// TestFiles: those that come with a message are closed, however many, but for one.
func TestFiles(t *testing.T) {
	whole := message{kind: kindEnd}.encode()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for _, n := range []int{1, 2, 6, 200} {
		a, b := sockets(t)
		c, err := newConn(b)
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Sendmsg(int(a.Fd()), whole[:], unix.UnixRights(slices.Repeat([]int{int(w.Fd())}, n)...), nil, 0); err != nil {
			t.Fatal(err)
		}
		m, file, err := c.read()
		if (err == nil) != (n == 1) || n == 1 && (m.kind != kindEnd || file == nil) {
			t.Errorf("%d: %+v, %v, %v", n, m, file, err)
		}
		if file != nil {
			file.Close()
		}
		c.close()
	}
	w.Close()
	if n, err := r.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("somebody has the pipe still: %d, %v", n, err)
	}
}

func FuzzMessage(f *testing.F) {
	for k := range kindDone + 2 {
		b := message{kind: k, slot: 3}.encode()
		f.Add(b[:])
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var b [messageSize]byte
		copy(b[:], data)
		m, err := decode(b)
		if err != nil {
			if !errdefs.IsInvalidArgument(err) {
				t.Error(err)
			}
			return
		}
		if m.encode() != b {
			t.Errorf("%x became %+v", b, m)
		}
		sizes := []int64{0, 1, 1 << 40}
		if m.within(sizes, Default) == nil && (m.length > uint64(Default.SlotBytes) || m.offset+m.length > uint64(sizes[m.piece])) {
			t.Errorf("let through %+v", m)
		}
	})
}

// FuzzPeer has a peer say anything to both sides. Slots that were passed on are within the ring, and of one owner.
func FuzzPeer(f *testing.F) {
	f.Add([]byte{2, 0, 0, 0, 1, 2, 1, 0, 0, 9, 3, 0, 0, 0, 0, 4, 0, 0, 0, 0}, true)
	f.Add([]byte{3, 0, 0, 0, 0, 5, 0, 0, 0, 0}, false)
	f.Fuzz(func(t *testing.T, script []byte, receive bool) {
		var messages []message
		for b := script; len(b) >= 5; b = b[5:] {
			messages = append(messages, message{
				kind: kind(b[0] % 7), slot: uint32(b[1] % 6), piece: uint32(b[2] % 4), offset: uint64(b[3]) << 4, length: uint64(binary.LittleEndian.Uint16(b[3:])),
			})
		}
		sizes := []int64{small.SlotBytes, 100, 0}
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
		if err != nil && !errdefs.IsInvalidArgument(err) && !errors.As(err, new(*GoneError)) {
			t.Error(err)
		}
	})
}
