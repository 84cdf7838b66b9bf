package device

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/cryo-project/cryo/image/record"
	"github.com/cryo-project/cryo/integration/gputest"
	"golang.org/x/sys/unix"
)

// TestSend sends pieces of more than one message, again and again, and nothing once they are let go.
func TestSend(t *testing.T) {
	h := newHost(t)
	c, pieces := h.made(append([]int64{6, 2, 4}, slices.Repeat([]int64{2}, Batch+2)...)...)
	if err := errors.Join(h.fill(c, pieces), h.check(c, pieces), h.check(c, pieces), c.LetGo(t.Context()), h.check(c, nil)); err != nil {
		t.Error(err)
	}
}

// TestStreams: all streams of all devices copy side by side, and each copies one part at a time.
func TestStreams(t *testing.T) {
	const streams = 4 // of a device
	h := newHost(t)
	c, err := StartKeeper(t.Context(), KeeperOptions{Path: h.Helper(), Ring: RingGeometry{Slots: 4 * streams, SlotBytes: 64 << 10}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	pieces := h.pieces(slices.Repeat([]int64{2}, 4*streams)...)
	for i := range pieces {
		pieces[i].Address = uint64(i) * Window // each is a window of its own
	}
	if err := c.Open(h.Devices); err != nil {
		t.Fatal(err)
	}
	files, err := c.Make(t.Context(), pieces)
	if err != nil {
		t.Fatal(err)
	}
	CloseAll(files)
	if err := h.fill(c, pieces); err != nil {
		t.Fatal(err)
	}
	h.Order(slices.Repeat([]string{"cuMemcpyDtoHAsync * hang"}, 2*streams+1)...)
	begun := func() int {
		text, err := os.ReadFile(filepath.Join(h.Dir, "orders"))
		if err != nil {
			t.Error(err)
		}
		return bytes.Count(text, []byte("#"))
	}
	ours, theirs := sockets(t)
	var wait sync.WaitGroup
	wait.Go(func() { _ = c.Send(t.Context(), theirs) })
	wait.Go(func() {
		_ = ReceivePieces(t.Context(), ours, sizes(pieces), func(_ Chunk, release func()) error { release(); return nil })
	})
	gputest.Eventually(t, "all streams copy", func() bool { return begun() >= 2*streams })
	time.Sleep(100 * time.Millisecond)
	if n := begun(); n != 2*streams {
		t.Errorf("%d copies are under way on %d streams", n, 2*streams)
	}
	if err := c.Kill(); err != nil {
		t.Error(err)
	}
	wait.Wait()
}

// TestRoom asks whether there is room for a copy of what is held, for other pieces, and for 256 MiB.
func TestRoom(t *testing.T) {
	const spare = 256
	const all = spare + 2*8 // MiB, with what is held and its copy
	for name, test := range map[string]struct {
		totals []int
		other  int   // on which device there are other pieces
		size   int64 // of these, MiB
		order  string
		want   bool
	}{
		"room":                 {totals: []int{all, all}, want: true},
		"too little on one":    {totals: []int{all, all - 2}},
		"room for others":      {totals: []int{all + 4, all}, other: 0, size: 4, want: true},
		"too little for those": {totals: []int{all + 4, all}, other: 1, size: 2},
		"cannot be told":       {totals: []int{all, all}, order: "cuMemGetInfo * error 700"},
	} {
		t.Run(name, func(t *testing.T) {
			gputest.Need(t)
			t.Parallel()
			h := &host{Host: gputest.New(t, test.totals...), t: t}
			c, pieces := h.made(6, 4, 2, 4)
			if err := h.fill(c, pieces); err != nil {
				t.Fatal(err)
			}
			h.Order(test.order)
			var others []record.GPUPiece
			if test.size > 0 {
				others = []record.GPUPiece{{Device: h.Devices[test.other], Size: test.size * mib}}
			}
			room, err := c.Room(t.Context(), others, spare*mib)
			if room != test.want || errors.As(err, new(*CallError)) != (test.order != "") {
				t.Fatalf("room %v: %v", room, err)
			}
			if err == nil {
				err = h.check(c, pieces)
			}
			if err != nil && test.order == "" {
				t.Error(err)
			}
		})
	}
}

// TestPeerGone: the other side of the ring dies after some of the messages.
func TestPeerGone(t *testing.T) {
	h := newHost(t)
	dead := errors.New("it dies here")
	for _, n := range []int{0, 1, small.Slots, small.Slots + 1, 15} {
		c, pieces := h.made(2, 2, 4)
		if err := h.fill(c, pieces); err != nil {
			t.Fatal(err)
		}
		err := h.ends(func(f *os.File) error {
			err := c.Send(t.Context(), f)
			if err == nil || !errdefs.IsAborted(err) || errors.As(err, new(*DiedError)) {
				t.Errorf("send: %v", err)
			}
			return nil
		}, func(f *os.File) error {
			defer f.Close()
			return ReceivePieces(t.Context(), f, sizes(pieces), func(_ Chunk, release func()) error {
				if n--; n < 0 {
					return dead
				}
				release()
				return nil
			})
		})
		if !errors.Is(err, dead) {
			t.Error(err)
		}
	}
	for _, n := range []int{0, 1, small.Slots, 2*small.Slots - 1} {
		c, pieces := h.made(2, 2, 4)
		err := h.ends(func(f *os.File) error {
			err := c.Receive(t.Context(), f)
			if err == nil || !errdefs.IsAborted(err) || errors.As(err, new(*DiedError)) {
				t.Errorf("receive: %v", err)
			}
			return nil
		}, func(f *os.File) error {
			defer f.Close()
			return SendPieces(t.Context(), f, sizes(pieces), func(ctx context.Context, s *Sender) error {
				for range n {
					if err := s.Put(ctx, 0, 0, func(dst []byte) (int, error) { return len(dst), nil }); err != nil {
						return err
					}
				}
				return dead
			})
		})
		if !errors.Is(err, dead) {
			t.Error(err)
		}
	}
}

// TestTurns: a client that waits for a keeper that is busy need not wait for ever, and what the keeper is busy with ends with it.
func TestTurns(t *testing.T) {
	h := newHost(t)
	for name, move := range map[string]func(*Keeper, context.Context, *os.File) error{"send": (*Keeper).Send, "receive": (*Keeper).Receive} {
		c, _ := h.made(2, 4)
		err := h.ends(func(f *os.File) error {
			if err := move(c, t.Context(), f); !errors.As(err, new(*DiedError)) {
				t.Errorf("%s: %v", name, err)
			}
			return nil
		}, func(f *os.File) error {
			link, err := AcceptRing(t.Context(), f) // and no more
			if err != nil {
				return err
			}
			defer link.Close()
			soon, stop := context.WithTimeout(t.Context(), 10*time.Millisecond)
			defer stop()
			if err := c.LetGo(soon); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s, while the keeper is busy: %v", name, err)
			}
			return c.Kill()
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// TestHang: a driver that does not answer is not waited for. Other tests do not run meanwhile: they want the time that it takes away.
func TestHang(t *testing.T) {
	before := askTime
	t.Cleanup(func() { askTime = before })
	h := &host{Host: gputest.New(t, total, total), t: t}
	c := h.start()
	if err := c.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	h.Order("cuMemGetInfo * hang")
	askTime = 100 * time.Millisecond
	_, err := c.Room(t.Context(), h.pieces(2), 0)
	var died *DiedError
	if !errors.As(err, &died) || died.Silent != askTime || !errdefs.IsAborted(err) || !strings.Contains(died.Hint(), "nvidia-smi") {
		t.Errorf("room: %v", err)
	}
}

// TestEnds: the keeper ends with its client, whatever it is about.
func TestEnds(t *testing.T) {
	for _, busy := range []string{"idle", "with a peer that waits", "with a driver that hangs"} {
		for name, end := range map[string]func(*Keeper) error{
			"hang up": func(c *Keeper) error { return c.Channel.Close() },
			"SIGKILL": (*Keeper).Kill,
			"SIGTERM": func(c *Keeper) error { return unix.Kill(c.PID(), unix.SIGTERM) },
			"close":   (*Keeper).Close,
		} {
			t.Run(name+" "+busy, func(t *testing.T) {
				h := newHost(t)
				c, pieces := h.made(2)
				var wait sync.WaitGroup
				if busy != "idle" {
					if busy == "with a driver that hangs" {
						if err := h.fill(c, pieces); err != nil {
							t.Fatal(err)
						}
						h.Order("cuMemcpyDtoHAsync * hang")
					}
					ours, theirs := sockets(t)
					wait.Go(func() {
						// On a signal the keeper may come to answer.
						if err := c.Send(t.Context(), theirs); err == nil || name != "SIGTERM" && !errors.As(err, new(*DiedError)) {
							t.Error(err)
						}
					})
					link, err := AcceptRing(t.Context(), ours)
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
					t.Error("it lives")
				}
				wait.Wait()
				if _, err := c.Make(t.Context(), pieces); !errors.As(err, new(*DiedError)) {
					t.Error(err)
				}
				if err := c.LetGo(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// TestPeak: what the keeper needs of the host's memory does not depend on what it holds. Memory of the fake driver is in files.
func TestPeak(t *testing.T) {
	h := newHost(t)
	c, pieces := h.made(16, 16)
	used := func() int64 {
		err := h.ends(func(f *os.File) error { return c.Send(t.Context(), f) }, func(f *os.File) error {
			return ReceivePieces(t.Context(), f, sizes(pieces), func(_ Chunk, release func()) error { release(); return nil })
		})
		if err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.PID()))
		if err != nil {
			t.Fatal(err)
		}
		var kib int64
		if _, after, ok := strings.Cut(string(text), "RssAnon:"); !ok {
			t.Fatalf("no RssAnon in %s", text)
		} else if _, err := fmt.Sscan(after, &kib); err != nil {
			t.Fatal(err)
		}
		return kib << 10
	}
	before := used()
	more := h.pieces(128, 128)
	files, err := c.Make(t.Context(), more)
	if err != nil {
		t.Fatal(err)
	}
	CloseAll(files)
	pieces = append(pieces, more...)
	if after := used(); after > before+32*mib {
		t.Errorf("%d MiB, and %d MiB for 256 MiB more", before/mib, after/mib)
	}
}
