package device

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/failure"
)

// smallRing has slots of a page.
var smallRing = RingGeometry{Slots: 4, SlotBytes: int64(os.Getpagesize())}

// ringSockets gives both ends of a connection.
func ringSockets(t *testing.T) (a, b *os.File) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	a, b = os.NewFile(uintptr(pair[0]), "a"), os.NewFile(uintptr(pair[1]), "b")
	t.Cleanup(func() {
		a.Close()
		b.Close()
	})
	return a, b
}

// links gives a connected ring: the keeper's side, and the other.
func links(t *testing.T, g RingGeometry) (ours, theirs *Link) {
	t.Helper()
	a, b := ringSockets(t)
	m, err := NewRing(g)
	if err != nil {
		t.Fatal(err)
	}
	if ours, err = OfferRing(a, m); err != nil {
		t.Fatal(err)
	}
	if theirs, err = AcceptRing(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ours.Close()
		theirs.Close()
		m.Close()
	})
	a.Close()
	b.Close()
	return ours, theirs
}

// contents makes pieces of these sizes, of random bytes.
func contents(sizes []int64) [][]byte {
	r := rand.NewChaCha8([32]byte{})
	pieces := make([][]byte, len(sizes))
	for i, n := range sizes {
		pieces[i] = make([]byte, n)
		_, _ = r.Read(pieces[i])
	}
	return pieces
}

// giveAll sends pieces from several goroutines.
func giveAll(pieces [][]byte, workers int) func(context.Context, *Sender) error {
	return func(ctx context.Context, s *Sender) error {
		g, ctx := errgroup.WithContext(ctx)
		g.SetLimit(workers)
		for n, p := range pieces {
			for at := 0; at < len(p); at += int(s.link.Geometry().SlotBytes) {
				g.Go(func() error {
					return s.Put(ctx, n, int64(at), func(dst []byte) (int, error) { return copy(dst, p[at:]), nil })
				})
			}
		}
		return g.Wait()
	}
}

func TestThrough(t *testing.T) {
	page := smallRing.SlotBytes
	sizes := []int64{page, 100, 10*page + 1, 0, 3 * page}
	pieces := contents(sizes)
	for _, keeperSends := range []bool{true, false} {
		t.Run(fmt.Sprint(keeperSends), func(t *testing.T) {
			from, to := links(t, smallRing)
			if !keeperSends {
				from, to = to, from
			}
			got := make([][]byte, len(sizes))
			for i, n := range sizes {
				got[i] = make([]byte, n)
			}
			used := make(map[*byte]bool)
			var g errgroup.Group
			g.Go(func() error { return from.Send(t.Context(), sizes, giveAll(pieces, 8)) })
			g.Go(func() error {
				var late sync.WaitGroup
				defer late.Wait()
				return to.Receive(t.Context(), sizes, func(c Chunk, release func()) error {
					used[&c.Data[0]] = true
					late.Go(func() { // out of order
						copy(got[c.Piece][c.Offset:], c.Data)
						release()
					})
					return nil
				})
			})
			if err := g.Wait(); err != nil {
				t.Fatal(err)
			}
			for i := range pieces {
				if !bytes.Equal(pieces[i], got[i]) {
					t.Errorf("piece %d is another", i)
				}
			}
			if len(used) != smallRing.Slots {
				t.Errorf("%d slots were used", len(used))
			}
		})
	}
}

// TestBounded: a receiver that keeps what it gets stops the sender at the last slot.
func TestBounded(t *testing.T) {
	from, to := links(t, smallRing)
	sizes := []int64{smallRing.SlotBytes * 12}
	var g errgroup.Group
	g.Go(func() error { return from.Send(t.Context(), sizes, giveAll(contents(sizes), 3)) })
	var kept []func()
	most := 0
	g.Go(func() error {
		return to.Receive(t.Context(), sizes, func(c Chunk, release func()) error {
			kept = append(kept, release)
			most = max(most, len(kept))
			if len(kept) == smallRing.Slots {
				go func(all []func()) {
					for _, r := range all {
						r()
						r() // which does nothing
					}
				}(kept)
				kept = nil
			}
			return nil
		})
	})
	if err := g.Wait(); err != nil || most != smallRing.Slots {
		t.Errorf("%d slots were there at once: %v", most, err)
	}
}

// TestKept: who waits for a slot that is still here does not stall.
func TestKept(t *testing.T) {
	from, to := links(t, smallRing)
	to.Patience = 20 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	sent := make(chan struct{})
	var wait sync.WaitGroup
	wait.Go(func() {
		_ = from.Send(ctx, []int64{10}, func(ctx context.Context, s *Sender) error {
			err := s.Put(ctx, 0, 0, func([]byte) (int, error) { return 1, nil })
			close(sent)
			<-ctx.Done()
			return err
		})
	})
	<-sent
	time.AfterFunc(10*to.Patience, cancel)
	err := to.Receive(ctx, []int64{10}, func(Chunk, func()) error { return nil })
	if !errors.Is(err, context.Canceled) && !errors.Is(err, ErrHungUp) {
		t.Error(err)
	}
	wait.Wait()
}

// TestZero: what is zero is said in the order of what is sent, takes no slot, and lies in its piece.
func TestZero(t *testing.T) {
	page := smallRing.SlotBytes
	from, to := links(t, smallRing)
	sizes := []int64{10 * page}
	var got []Chunk
	var g errgroup.Group
	g.Go(func() error {
		return from.Send(t.Context(), sizes, func(ctx context.Context, s *Sender) error {
			if err := s.Zero(ctx, 0, 9*page, 2*page); err == nil {
				t.Error("more than the piece has")
			}
			err := s.Zero(ctx, 0, 0, 4*page)
			if err == nil {
				err = s.Put(ctx, 0, 4*page, func(dst []byte) (int, error) { return copy(dst, "not zero"), nil })
			}
			if err == nil {
				err = s.Zero(ctx, 0, 5*page, 5*page)
			}
			return err
		})
	})
	g.Go(func() error {
		return to.Receive(t.Context(), sizes, func(c Chunk, release func()) error {
			c.Data = bytes.Clone(c.Data)
			got = append(got, c)
			release()
			return nil
		})
	})
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	if len(got) != 3 || got[0].Zero != 4*page || string(got[1].Data) != "not zero" || got[2].Offset != 5*page || got[2].Zero != 5*page {
		t.Errorf("%+v", got)
	}
}

func TestNothing(t *testing.T) {
	from, to := links(t, smallRing)
	var g errgroup.Group
	g.Go(func() error { return from.Send(t.Context(), nil, giveAll(nil, 1)) })
	g.Go(func() error { return to.Receive(t.Context(), nil, nil) })
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
}

// TestWait: who sends and has nothing yet is waited for as long as it says so.
func TestWait(t *testing.T) {
	const waits = 30
	for name, says := range map[string]bool{"says so": true, "is still": false} {
		from, to := links(t, smallRing)
		to.Patience = time.Second
		var heard atomic.Int64
		to.Waits = func() { heard.Add(1) }
		var g errgroup.Group
		g.Go(func() error {
			return from.Send(t.Context(), []int64{10}, func(ctx context.Context, s *Sender) error {
				for range waits {
					time.Sleep(to.Patience / 20)
					if says {
						if err := s.Wait(); err != nil {
							return err
						}
					}
				}
				return s.Put(ctx, 0, 0, func([]byte) (int, error) { return 1, nil })
			})
		})
		err := to.Receive(t.Context(), []int64{10}, func(_ Chunk, release func()) error { release(); return nil })
		if sent := g.Wait(); says && (err != nil || sent != nil || heard.Load() != waits) {
			t.Errorf("%s: %v, %v, and it was heard %d times", name, err, sent, heard.Load())
		}
		if !says && !errdefs.IsUnavailable(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestStall: who does nothing though it is its turn is given up.
func TestStall(t *testing.T) {
	sizes := []int64{smallRing.SlotBytes * 8}
	for name, run := range map[string]func(from, to *Link) error{
		"who sends is still": func(_, to *Link) error { return to.Receive(t.Context(), sizes, nil) },
		"who receives takes nothing": func(from, _ *Link) error {
			return from.Send(t.Context(), sizes, giveAll(contents(sizes), 2))
		},
		"who receives is never done": func(from, _ *Link) error { return from.Send(t.Context(), sizes, giveAll(nil, 1)) },
	} {
		from, to := links(t, smallRing)
		from.Patience, to.Patience = 20*time.Millisecond, 20*time.Millisecond
		err := run(from, to)
		if !errdefs.IsUnavailable(err) || failure.Hint(err) == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestCancelled(t *testing.T) {
	reason := errors.New("no longer wanted")
	sizes := []int64{smallRing.SlotBytes * 8}
	for name, run := range map[string]func(ctx context.Context, from, to *Link) error{
		"receive": func(ctx context.Context, _, to *Link) error { return to.Receive(ctx, sizes, nil) },
		"send": func(ctx context.Context, from, _ *Link) error {
			return from.Send(ctx, sizes, giveAll(contents(sizes), 1))
		},
		"end": func(ctx context.Context, from, _ *Link) error { return from.Send(ctx, sizes, giveAll(nil, 1)) },
	} {
		from, to := links(t, smallRing)
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(10*time.Millisecond, func() { cancel(reason) })
		if err := run(ctx, from, to); !errors.Is(err, reason) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestOwnErrors: what goes wrong here is what is told here, and the other side hears of the end.
func TestOwnErrors(t *testing.T) {
	reason := errors.New("the disk is full")
	sizes := []int64{smallRing.SlotBytes * 8}
	all := giveAll(contents(sizes), 2)
	for name, test := range map[string]struct {
		give func(context.Context, *Sender) error
		take func(Chunk, func()) error
	}{
		"take": {all, func(Chunk, func()) error { return reason }},
		"give": {func(ctx context.Context, s *Sender) error {
			return s.Put(ctx, 0, 0, func([]byte) (int, error) { return 0, reason })
		}, nil},
	} {
		from, to := links(t, smallRing)
		var sent, received error
		var wait sync.WaitGroup
		wait.Go(func() { sent = from.Send(t.Context(), sizes, test.give) })
		wait.Go(func() { received = to.Receive(t.Context(), sizes, test.take) })
		wait.Wait()
		own, other := received, sent
		if name == "give" {
			own, other = sent, received
		}
		if !errors.Is(own, reason) || !errors.Is(other, ErrHungUp) || !errdefs.IsAborted(other) || failure.Hint(other) == "" {
			t.Errorf("%s: here %v, there %v", name, own, other)
		}
	}
}

func TestSenderRefuses(t *testing.T) {
	from, _ := links(t, smallRing)
	sizes := []int64{100}
	full := func(dst []byte) (int, error) { return len(dst), nil }
	err := from.Send(t.Context(), sizes, func(ctx context.Context, s *Sender) error {
		for _, where := range []struct {
			piece  int
			offset int64
		}{{-1, 0}, {1, 0}, {0, -1}, {0, 101}} {
			if err := s.Put(ctx, where.piece, where.offset, full); !errdefs.IsInvalidArgument(err) {
				t.Errorf("%+v: %v", where, err)
			}
		}
		return s.Put(ctx, 0, 0, func([]byte) (int, error) { return 101, nil })
	})
	if !errdefs.IsInvalidArgument(err) {
		t.Error(err)
	}
}

// TestRing is the first message.
func TestRing(t *testing.T) {
	page := int64(os.Getpagesize())
	sealed := func(size int64, seals int) *os.File {
		fd, err := unix.MemfdCreate("t", unix.MFD_ALLOW_SEALING|unix.MFD_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(unix.Ftruncate(fd, size)); err != nil {
			t.Fatal(err)
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
			t.Fatal(err)
		}
		return os.NewFile(uintptr(fd), "t")
	}
	plain, err := os.Create(t.TempDir() + "/f")
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		message
		file *os.File
		say  string
	}{
		"no file":         {message{Kind: kindRing, Slot: 1, Length: page}, nil, "does not begin with a ring"},
		"another message": {message{Kind: kindEnd}, nil, "does not begin with a ring"},
		"no slots":        {message{Kind: kindRing, Length: page}, sealed(1<<20, seals), "0 slots"},
		"no bytes":        {message{Kind: kindRing, Slot: 1}, sealed(1<<20, seals), "slots of 0 bytes"},
		"many":            {message{Kind: kindRing, Slot: 1 << 31, Length: 1 << 62}, sealed(1<<20, seals), "slots of"},
		"odd":             {message{Kind: kindRing, Slot: 1, Length: page + 1}, sealed(1<<20, seals), "slots of"},
		"not sealed":      {message{Kind: kindRing, Slot: 1, Length: page}, sealed(1<<20, unix.F_SEAL_GROW), "not sealed"},
		"too small":       {message{Kind: kindRing, Slot: 2, Length: page}, sealed(page, seals), "has 4096 bytes"},
		"no memfd":        {message{Kind: kindRing, Slot: 1, Length: page}, plain, "look at"},
	} {
		a, b := ringSockets(t)
		c, err := newConn(a)
		if err != nil {
			t.Fatal(err)
		}
		var fds []int
		if test.file != nil {
			fds = append(fds, int(test.file.Fd()))
		}
		if err := c.write(test.message, fds...); err != nil {
			t.Fatal(err)
		}
		if l, err := AcceptRing(t.Context(), b); err == nil || !strings.Contains(err.Error(), test.say) {
			t.Errorf("%s: %v, %v", name, l, err)
		}
		c.Close()
	}
	a, b := ringSockets(t)
	a.Close()
	if _, err := AcceptRing(t.Context(), b); !errors.Is(err, ErrHungUp) {
		t.Errorf("nobody there: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, b = ringSockets(t)
	if _, err := AcceptRing(ctx, b); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("nothing comes: %v", err)
	}
}
