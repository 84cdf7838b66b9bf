package keeper

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/spec"
	"github.com/cryo-project/cryo/runtime/gpu/driver"
	"github.com/cryo-project/cryo/runtime/gpu/ring"
)

func TestOut(t *testing.T) {
	c := start(t, "")
	if err := c.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	// Pieces of two calls, the second of more than a message.
	g := give(t, append([]int64{6, 2, 4}, slicesOf(2, batch+2)...)...)
	for _, n := range [][2]int{{0, 3}, {3, len(g.pieces)}} {
		if err := c.Hold(t.Context(), g.pieces[n[0]:n[1]], g.files[n[0]:n[1]]); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // it can be sent again
		got, err := drain(t, g.pieces, func(peer *os.File) error { return c.Send(t.Context(), peer) })
		if err != nil {
			t.Fatal(err)
		}
		same(t, "sent", got, g.contents)
	}
	if err := c.LetGo(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := drain(t, nil, func(peer *os.File) error { return c.Send(t.Context(), peer) }); err != nil {
		t.Errorf("nothing: %v", err)
	}
}

// slicesOf gives n of them.
func slicesOf(size int64, n int) []int64 {
	sizes := make([]int64, n)
	for i := range sizes {
		sizes[i] = size
	}
	return sizes
}

// TestIn fills memory but for some ranges, which are zero though somebody has left something there.
func TestIn(t *testing.T) {
	c := start(t, "")
	g := give(t, append([]int64{6, 2, 4}, slicesOf(2, batch)...)...)
	files, err := c.Make(t.Context(), g.pieces)
	if err != nil || len(files) != len(g.pieces) {
		t.Fatalf("%d files: %v", len(files), err)
	}
	sizes := make([]int64, len(g.pieces))
	for i, p := range g.pieces {
		sizes[i] = p.Size
		defer files[i].Close()
	}
	err = load(t, sizes, func(peer *os.File) error { return c.Receive(t.Context(), peer) }, func(ctx context.Context, s *ring.Sender) error {
		w, ctx := errgroup.WithContext(ctx)
		for n, content := range g.contents {
			w.Go(func() error {
				for at := 0; at < len(content); at += int(small.SlotBytes) {
					if n == 1 || at/int(small.SlotBytes)%3 == 1 {
						clear(content[at : at+int(small.SlotBytes)])
						continue
					}
					if err := s.Put(ctx, n, int64(at), func(dst []byte) (int, error) { return copy(dst, content[at:]), nil }); err != nil {
						return err
					}
				}
				return nil
			})
		}
		return w.Wait()
	})
	if err != nil {
		t.Fatal(err)
	}
	got := make([][]byte, len(files))
	for i, f := range files {
		if got[i], err = io.ReadAll(io.NewSectionReader(f, 0, 1<<40)); err != nil {
			t.Fatal(err)
		}
	}
	same(t, "filled", got, g.contents)
}

func TestRoom(t *testing.T) {
	const spare = 64 * mib
	const all = spare + 8*mib
	for name, test := range map[string]struct {
		totals []int64
		others []spec.GPUPiece
		orders string
		want   bool
	}{
		"room":                 {[]int64{all, all}, nil, "", true},
		"too little on one":    {[]int64{all, all - 2*mib}, nil, "", false},
		"room for others":      {[]int64{all + 4*mib, all}, []spec.GPUPiece{{Device: uuids[0], Size: 4 * mib}}, "", true},
		"too little for those": {[]int64{all + 4*mib, all}, []spec.GPUPiece{{Device: uuids[1], Size: 2 * mib}}, "", false},
		"cannot be told":       {[]int64{all, all}, nil, "room 2 700", false},
	} {
		t.Run(name, func(t *testing.T) {
			c := start(t, test.orders, test.totals...)
			g := give(t, 6, 4, 2, 4)
			if err := c.Hold(t.Context(), g.pieces, g.files); err != nil {
				t.Fatal(err)
			}
			room, err := c.Room(t.Context(), test.others, spare)
			if room != test.want || errors.As(err, new(*driver.CallError)) != (test.orders != "") {
				t.Fatalf("room %v: %v", room, err)
			}
			if err != nil {
				return
			}
			got, err := drain(t, g.pieces, func(peer *os.File) error { return c.Send(t.Context(), peer) })
			if err != nil {
				t.Fatal(err)
			}
			same(t, "sent", got, g.contents)
		})
	}
}

// TestCopy: memory has what other memory had, whatever is held, and neither is held afterwards.
func TestCopy(t *testing.T) {
	c := start(t, "")
	from, to, other := give(t, 6, 4), give(t, 6, 4, 2), give(t, 2)
	if err := c.Hold(t.Context(), other.pieces, other.files); err != nil {
		t.Fatal(err)
	}
	for i, p := range from.pieces {
		if err := c.Copy(t.Context(), p, from.files[i], to.files[i]); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, p.Size)
		if _, err := to.files[i].ReadAt(got, 0); err != nil || !bytes.Equal(got, from.contents[i]) {
			t.Errorf("piece %d is another, %v", i, err)
		}
	}
	got, err := drain(t, other.pieces, func(peer *os.File) error { return c.Send(t.Context(), peer) })
	if err != nil {
		t.Fatal(err)
	}
	same(t, "held", got, other.contents)
	// What fails is told, and can be done again.
	c = start(t, "import 1 1, import 3 1, copy 1 700, free 4 700")
	for range 4 {
		if err := c.Copy(t.Context(), from.pieces[0], from.files[0], to.files[0]); !errors.As(err, new(*driver.CallError)) || !strings.Contains(err.Error(), uuids[0]) {
			t.Error(err)
		}
	}
	if err := c.Copy(t.Context(), from.pieces[0], from.files[0], to.files[2]); !errors.As(err, new(*driver.CallError)) {
		t.Errorf("to a smaller one: %v", err)
	}
	if err := c.Copy(t.Context(), from.pieces[0], from.files[0], to.files[0]); err != nil {
		t.Error(err)
	}
}

// over wants a keeper to end, which has told of an error.
func over(t *testing.T, c *Client) {
	t.Helper()
	select {
	case <-c.Ended():
	case <-time.After(30 * time.Second):
		t.Error("it lives")
	}
}

func TestRefused(t *testing.T) {
	g := give(t, slicesOf(2, batch+10)...)
	var call *driver.CallError
	c := start(t, "import 40 1")
	err := c.Hold(t.Context(), g.pieces, g.files)
	if !errors.As(err, &call) || call.Code != 1 || !errdefs.IsAborted(err) || call.Hint() == "" || !strings.Contains(err.Error(), "device memory 39, 2097152 bytes on "+uuids[1]) {
		t.Errorf("a descriptor that the driver refuses: %v", err)
	}
	over(t, c)
	for name, p := range map[string]spec.GPUPiece{
		"a size that is not the descriptor's": {Device: uuids[0], Size: 4 * mib},
		"a device that there is not":          {Device: "GPU-00000009-0000-4000-8000-00000000000a", Size: 2 * mib},
	} {
		c := start(t, "")
		if err := c.Hold(t.Context(), []spec.GPUPiece{p}, g.files[:1]); err == nil || !strings.Contains(err.Error(), "device memory 0, ") {
			t.Errorf("%s: %v", name, err)
		}
		over(t, c)
	}
	c = start(t, "")
	for name, p := range map[string]spec.GPUPiece{
		"no device":                    {Device: "GPU-9", Size: 2 * mib},
		"no size":                      {Device: uuids[0]},
		"half a page":                  {Device: uuids[0], Size: mib},
		"a huge one":                   {Device: uuids[0], Size: maxSize + 2*mib},
		"an address between two pages": {Device: uuids[0], Size: 2 * mib, Address: mib},
		"an address beyond all":        {Device: uuids[0], Size: 2 * mib, Address: maxAddress + 2*mib},
	} {
		if err := c.Hold(t.Context(), []spec.GPUPiece{p}, g.files[:1]); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "device memory 0, ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := c.Hold(t.Context(), g.pieces, g.files[:1]); !errdefs.IsInvalidArgument(err) {
		t.Errorf("too few descriptors: %v", err)
	}
	shut, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	shut.Close()
	if err := c.Hold(t.Context(), g.pieces[:1], []*os.File{shut}); !errors.Is(err, unix.EBADF) {
		t.Errorf("a file that is closed: %v", err)
	}
	if err := c.Send(t.Context(), shut); !errors.Is(err, unix.EBADF) {
		t.Errorf("a peer that is closed: %v", err)
	}
	// It has been asked for nothing so far.
	if err := c.Hold(t.Context(), g.pieces, g.files); err != nil {
		t.Fatal(err)
	}
	got, err := drain(t, g.pieces, func(peer *os.File) error { return c.Send(t.Context(), peer) })
	if err != nil {
		t.Fatal(err)
	}
	same(t, "sent", got, g.contents)
	c = start(t, "make 2 2")
	if files, err := c.Make(t.Context(), g.pieces[:2]); !errors.As(err, &call) || call.Code != driver.OutOfMemory || !strings.Contains(call.Hint(), "nvidia-smi") || files != nil {
		t.Errorf("out of memory: %v, %v", files, err)
	}
	c = start(t, "clear 2 700")
	if files, err := c.Make(t.Context(), slices.Repeat(g.pieces[:1], 2)); !errors.As(err, &call) || call.Code != 700 || files != nil {
		t.Errorf("cannot be cleared: %v, %v", files, err)
	}
}

func TestDriverCannotBeUsed(t *testing.T) {
	c := start(t, "open 1 100")
	for range 2 {
		if err := c.Ready(t.Context()); !errors.As(err, new(*driver.CallError)) {
			t.Error(err)
		}
		if _, err := c.Room(t.Context(), nil, 0); !errors.As(err, new(*driver.CallError)) {
			t.Error(err)
		}
	}
	var missing *driver.NoHelperError
	if _, err := Start(t.Context(), Options{Path: "/nowhere"}); !errors.As(err, &missing) {
		t.Error(err)
	}
	if err := c.Open([]string{"x"}); !errdefs.IsInvalidArgument(err) {
		t.Error(err)
	}
}

// TestDiesAtEachCall: the client is told, and so is the other side of the ring.
func TestDiesAtEachCall(t *testing.T) {
	for _, at := range []string{"open 1", "device 1", "pin 1", "import 2", "room 1", "copy 1", "make 2", "read 1", "read 100", "export 2", "clear 1", "write 1", "write 40", "free 1"} {
		t.Run(at, func(t *testing.T) {
			c := start(t, at+" kill")
			g := give(t, 2, 2, 4)
			failed := false
			step := func(name string, err error) {
				t.Helper()
				var died *driver.DiedError
				switch {
				case err == nil && !failed:
				case !errors.As(err, &died) || !strings.Contains(died.How, "killed") || !errdefs.IsAborted(err):
					t.Errorf("%s: %v", name, err)
				default:
					failed = true
				}
			}
			sizes := []int64{2 * mib, 2 * mib, 4 * mib, 2 * mib, 2 * mib, 4 * mib}
			everything := func(ctx context.Context, s *ring.Sender) error {
				for n, size := range sizes {
					for at := int64(0); at < size; at += small.SlotBytes {
						if err := s.Put(ctx, n, at, func(dst []byte) (int, error) { return len(dst), nil }); err != nil {
							return err
						}
					}
				}
				return nil
			}
			step("ready", c.Ready(t.Context()))
			step("hold", c.Hold(t.Context(), g.pieces, g.files))
			_, err := c.Room(t.Context(), nil, 0)
			step("room", err)
			step("copy", c.Copy(t.Context(), g.pieces[0], g.files[0], give(t, 2).files[0]))
			_, err = drain(t, g.pieces, func(peer *os.File) error { return c.Send(t.Context(), peer) })
			if failed && !errors.As(err, new(*ring.GoneError)) {
				t.Errorf("the other side does not hear of it: %v", err)
			}
			step("send", err)
			_, err = c.Make(t.Context(), g.pieces)
			step("make", err)
			err = load(t, sizes, func(peer *os.File) error { return c.Receive(t.Context(), peer) }, everything)
			step("receive", err)
			if failed && !errors.As(err, new(*ring.GoneError)) {
				t.Errorf("the other side does not hear of it: %v", err)
			}
			if err := c.LetGo(t.Context()); err != nil {
				step("let go", err)
			}
			if !failed {
				t.Error("it has not died")
			}
			select {
			case <-c.Ended():
			case <-time.After(30 * time.Second):
				t.Error("it lives")
			}
		})
	}
}

// TestFailsAtEachCopy has copies fail: the client gets the driver's error, the other side of the ring hears that it is over, and the keeper ends.
func TestFailsAtEachCopy(t *testing.T) {
	g := give(t, 2, 2, 4)
	sizes := []int64{2 * mib, 2 * mib, 4 * mib}
	for _, at := range []string{"read 1", "read 50", "write 1", "write 50"} {
		c := start(t, at+" 700")
		if err := c.Hold(t.Context(), g.pieces, g.files); err != nil {
			t.Fatal(err)
		}
		_, err := drain(t, g.pieces, func(peer *os.File) error { return c.Send(t.Context(), peer) })
		if strings.HasPrefix(at, "write") {
			if err != nil {
				t.Errorf("%s: %v", at, err)
			}
			err = load(t, sizes, func(peer *os.File) error { return c.Receive(t.Context(), peer) }, func(ctx context.Context, s *ring.Sender) error {
				for at := int64(0); at < sizes[2]; at += small.SlotBytes {
					if err := s.Put(ctx, 2, at, func(dst []byte) (int, error) { return copy(dst, g.contents[2][at:]), nil }); err != nil {
						return err
					}
				}
				return nil
			})
		}
		if !errors.As(err, new(*driver.CallError)) || !strings.Contains(err.Error(), "device memory ") || !errors.As(err, new(*ring.GoneError)) {
			t.Errorf("%s: %v", at, err)
		}
		over(t, c)
	}
}

// TestPeerGone: the other side of the ring dies after some of the messages.
func TestPeerGone(t *testing.T) {
	g := give(t, 2, 2, 4)
	sizes := []int64{2 * mib, 2 * mib, 4 * mib}
	holding := func() *Client {
		c := start(t, "")
		if err := c.Hold(t.Context(), g.pieces, g.files); err != nil {
			t.Fatal(err)
		}
		return c
	}
	dead := errors.New("it dies here")
	for _, n := range []int{0, 1, small.Slots, small.Slots + 1, 50} {
		ours, theirs := sockets(t)
		var wait sync.WaitGroup
		wait.Go(func() {
			_ = ring.Receive(t.Context(), ours, sizes, func(_ ring.Chunk, release func()) error {
				if n--; n < 0 {
					return dead
				}
				release()
				return nil
			})
		})
		if err := holding().Send(t.Context(), theirs); err == nil || !errdefs.IsAborted(err) || errors.As(err, new(*driver.DiedError)) {
			t.Errorf("send: %v", err)
		}
		wait.Wait()
	}
	nobody, theirs := sockets(t)
	nobody.Close()
	if err := holding().Send(t.Context(), theirs); !errdefs.IsAborted(err) {
		t.Errorf("to nobody: %v", err)
	}
	for _, n := range []int{0, 1, small.Slots, 2*small.Slots - 1} {
		ours, theirs := sockets(t)
		var wait sync.WaitGroup
		wait.Go(func() {
			_ = ring.Send(t.Context(), ours, sizes, func(ctx context.Context, s *ring.Sender) error {
				for range n {
					if err := s.Put(ctx, 0, 0, func(dst []byte) (int, error) { return len(dst), nil }); err != nil {
						return err
					}
				}
				return dead
			})
		})
		if err := holding().Receive(t.Context(), theirs); err == nil || !errdefs.IsAborted(err) || errors.As(err, new(*driver.DiedError)) {
			t.Errorf("receive: %v", err)
		}
		wait.Wait()
	}
}

// TestTurns: who waits for a keeper that is busy need not wait for ever, and what it is busy with ends with it.
func TestTurns(t *testing.T) {
	for name, move := range map[string]func(*Client, context.Context, *os.File) error{"send": (*Client).Send, "receive": (*Client).Receive} {
		c := start(t, "")
		g := give(t, 2, 4)
		if err := c.Hold(t.Context(), g.pieces, g.files); err != nil {
			t.Fatal(err)
		}
		ours, theirs := sockets(t)
		link := make(chan error, 1)
		go func() {
			_, err := ring.Accept(t.Context(), ours) // and no more
			link <- err
			soon, stop := context.WithTimeout(t.Context(), 10*time.Millisecond)
			defer stop()
			if err := c.LetGo(soon); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s, while the keeper is busy: %v", name, err)
			}
			_ = c.Kill()
		}()
		if err := move(c, t.Context(), theirs); !errors.As(err, new(*driver.DiedError)) {
			t.Errorf("%s: %v", name, err)
		}
		if err := <-link; err != nil {
			t.Error(err)
		}
	}
}

// TestHang: a driver that does not answer is not waited for.
func TestHang(t *testing.T) {
	before := askTime
	t.Cleanup(func() { askTime = before })
	c := start(t, "import 1 hang")
	if err := c.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	askTime = 100 * time.Millisecond
	g := give(t, 2)
	err := c.Hold(t.Context(), g.pieces, g.files)
	var died *driver.DiedError
	if !errors.As(err, &died) || died.Silent != askTime || !errdefs.IsAborted(err) || !strings.Contains(died.Hint(), "nvidia-smi") {
		t.Errorf("hold: %v", err)
	}
	askTime = before
}

// TestEnds: the keeper ends with its client, whatever it is about.
func TestEnds(t *testing.T) {
	for _, busy := range []string{"", "with a peer that waits", "with a driver that hangs"} {
		for name, end := range map[string]func(*Client) error{
			"hang up": func(c *Client) error { return c.Channel.Close() },
			"SIGKILL": (*Client).Kill,
			"close":   (*Client).Close,
		} {
			orders := ""
			if busy == "with a driver that hangs" {
				orders = "read 1 hang"
			}
			c := start(t, orders)
			g := give(t, 2)
			if err := c.Hold(t.Context(), g.pieces, g.files); err != nil {
				t.Fatal(err)
			}
			var wait sync.WaitGroup
			if busy != "" {
				ours, theirs := sockets(t)
				wait.Go(func() {
					if err := c.Send(t.Context(), theirs); !errors.As(err, new(*driver.DiedError)) {
						t.Errorf("%s %s: %v", name, busy, err)
					}
				})
				link, err := ring.Accept(t.Context(), ours)
				if err != nil {
					t.Fatal(err)
				}
				defer link.Close()
			}
			if err := end(c); err != nil {
				t.Error(err)
			}
			select {
			case <-c.Ended():
			case <-time.After(30 * time.Second):
				t.Errorf("%s %s: it lives", name, busy)
			}
			wait.Wait()
			if err := c.Hold(t.Context(), g.pieces, g.files); !errors.As(err, new(*driver.DiedError)) {
				t.Errorf("%s: %v", name, err)
			}
			if err := c.LetGo(t.Context()); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// TestPeak: what the keeper needs of the host's memory does not depend on what it holds.
func TestPeak(t *testing.T) {
	c := start(t, "", 1<<40, 1<<40)
	discard := func(sizes []int64) int64 {
		ours, theirs := sockets(t)
		var wait sync.WaitGroup
		var received error
		wait.Go(func() {
			received = ring.Receive(t.Context(), ours, sizes, func(_ ring.Chunk, release func()) error {
				release()
				return nil
			})
		})
		err := c.Send(t.Context(), theirs)
		if wait.Wait(); err != nil || received != nil {
			t.Fatal(err, received)
		}
		return peak(t, c.PID())
	}
	var sizes []int64
	hold := func(size int64) {
		file, err := fakeFile(size) // which takes nothing, as nobody writes to it
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		if err := c.Hold(t.Context(), []spec.GPUPiece{{Device: uuids[len(sizes)%2], Size: size}}, []*os.File{file}); err != nil {
			t.Fatal(err)
		}
		sizes = append(sizes, size)
	}
	hold(64 * mib)
	before := discard(sizes)
	hold(1 << 30)
	hold(1 << 30)
	if after := discard(sizes); after > before+32*mib {
		t.Errorf("%d MiB, and %d MiB for 2 GiB more", before/mib, after/mib)
	}
}

// peak is the most memory a process has had, in bytes.
func peak(t *testing.T, pid int) int64 {
	t.Helper()
	return status(t, pid, "VmHWM")
}
