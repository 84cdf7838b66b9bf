package device

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/cryo-project/cryo/image/record"
	"github.com/cryo-project/cryo/integration/gputest"
	"golang.org/x/sys/unix"
)

// total is the memory of a fake device, in MiB: a copy leaves 256.
const total = 300

// host is one with two fake devices.
type host struct {
	*gputest.Host
	t    *testing.T
	zero int64 // bytes that check was told are zero
}

// newHost makes the host. The test runs beside others from here on.
func newHost(t *testing.T) *host {
	t.Helper()
	gputest.Need(t)
	t.Parallel()
	return &host{Host: gputest.New(t, total, total), t: t}
}

// small is a ring that is soon full.
var small = RingGeometry{Slots: 4, SlotBytes: 256 << 10}

// start starts a keeper, with more variables.
func (h *host) start(variables ...string) *Keeper {
	h.t.Helper()
	c, err := StartKeeper(h.t.Context(), KeeperOptions{Path: h.Helper(variables...), Ring: small})
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() {
		if err := c.Close(); err != nil {
			h.t.Error(err)
		}
	})
	if err := c.Open(h.Devices[:1]); err != nil {
		h.t.Fatal(err)
	}
	return c
}

// pieces are on the devices by turns, one behind the other; sizes in MiB.
func (h *host) pieces(sizes ...int64) (p []record.GPUPiece) {
	address := uint64(3*Window - 10*mib) // soon in the next window
	for i, n := range sizes {
		p = append(p, record.GPUPiece{Device: h.Devices[i%2], Size: n * mib, Address: address})
		address += uint64(n * mib)
	}
	return p
}

// sockets are both ends of what a ring goes over.
func sockets(t *testing.T) (ours, theirs *os.File) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs = os.NewFile(uintptr(pair[0]), "ours"), os.NewFile(uintptr(pair[1]), "theirs")
	t.Cleanup(func() {
		ours.Close()
		theirs.Close()
	})
	return ours, theirs
}

// made starts a keeper that holds new memory; sizes in MiB.
func (h *host) made(sizes ...int64) (*Keeper, []record.GPUPiece) {
	h.t.Helper()
	c, pieces := h.start(), h.pieces(sizes...)
	files, err := c.Make(h.t.Context(), pieces)
	if err != nil {
		h.t.Fatal(err)
	}
	CloseAll(files)
	return c, pieces
}

// ends has move work with one end of a connection, and other with the other.
func (h *host) ends(move func(*os.File) error, other func(*os.File) error) error {
	h.t.Helper()
	ours, theirs := sockets(h.t)
	var here, there error
	var wait sync.WaitGroup
	wait.Go(func() { there = move(theirs) })
	wait.Go(func() { here = other(ours) })
	wait.Wait()
	return errors.Join(there, here)
}

// content is what is in a piece; its second MiB is zero.
func content(n int, size int64) []byte {
	b := bytes.Repeat([]byte{byte(n + 1), byte(n + 2), 7}, int(size/3+1))[:size]
	clear(b[mib : 2*mib])
	return b
}

// fill has pieces filled with their contents.
func (h *host) fill(c *Keeper, pieces []record.GPUPiece) error {
	h.t.Helper()
	return h.ends(func(f *os.File) error { return c.Receive(h.t.Context(), f) }, func(f *os.File) error {
		return SendPieces(h.t.Context(), f, sizes(pieces), func(ctx context.Context, s *Sender) error {
			for n, p := range pieces {
				data := content(n, p.Size)
				for at := int64(0); at < p.Size; at += 256 << 10 {
					if at >= mib && at < 2*mib {
						continue
					}
					if err := s.Put(ctx, n, at, func(dst []byte) (int, error) { return copy(dst, data[at:]), nil }); err != nil {
						return err
					}
				}
			}
			return nil
		})
	})
}

func sizes(pieces []record.GPUPiece) (s []int64) {
	for _, p := range pieces {
		s = append(s, p.Size)
	}
	return s
}

// check has everything sent, and fails the test unless it is what fill has filled in, and parts of a window come in the order of addresses.
func (h *host) check(c *Keeper, pieces []record.GPUPiece) error {
	h.t.Helper()
	var all [][]byte
	for _, p := range pieces {
		all = append(all, make([]byte, p.Size))
	}
	next := make(map[string]uint64) // by device and window: the least address that may come
	err := h.ends(func(f *os.File) error { return c.Send(h.t.Context(), f) }, func(f *os.File) error {
		return ReceivePieces(h.t.Context(), f, sizes(pieces), func(c Chunk, release func()) error {
			h.zero += c.Zero
			at := pieces[c.Piece].Address + uint64(c.Offset)
			window := fmt.Sprint(pieces[c.Piece].Device, at/Window)
			if last := at + uint64(len(c.Data)) - 1; at < next[window] || last/Window != at/Window {
				return fmt.Errorf("piece %d, offset %d comes late, or is of two windows", c.Piece, c.Offset)
			}
			next[window] = at + uint64(len(c.Data))
			copy(all[c.Piece][c.Offset:], c.Data)
			release()
			return nil
		})
	})
	for n, p := range pieces {
		if err == nil && !bytes.Equal(all[n], content(n, p.Size)) {
			h.t.Errorf("piece %d is another", n)
		}
	}
	return err
}

// emptyTime bounds how long a process that another test is starting may have descriptors of this one, until it executes its program.
const emptyTime = 10 * time.Second

// empty fails the test unless all of the devices is free. c holds nothing.
func (h *host) empty(c *Keeper) {
	h.t.Helper()
	for deadline := time.Now().Add(emptyTime); ; time.Sleep(10 * time.Millisecond) {
		files, err := c.Make(h.t.Context(), h.pieces(2, 2)) // which has the fake driver look for what no process has any more
		if err != nil {
			h.t.Fatal(err)
		}
		CloseAll(files)
		if err := c.LetGo(h.t.Context()); err != nil {
			h.t.Fatal(err)
		}
		left, err := filepath.Glob(filepath.Join(h.Dir, "GPU-*", "mem-*"))
		if err == nil && len(left) == 0 {
			return
		}
		if err != nil || time.Now().After(deadline) {
			h.t.Fatalf("left are %v, %v", left, err)
		}
	}
}
