package device

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/record"
)

// wide is a ring whose slots have whole units.
var wide = RingGeometry{Slots: 3, SlotBytes: 2 * Unit}

// startWide starts a keeper with such a ring.
func (h *host) startWide() *Keeper {
	h.t.Helper()
	c, err := StartKeeper(h.t.Context(), KeeperOptions{Path: h.Helper(), Ring: wide})
	if err == nil {
		err = c.Open(h.Devices[:1])
	}
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = c.Close() })
	return c
}

// put writes data into all that a keeper holds.
func (h *host) put(c *Keeper, pieces []record.GPUPiece, data [][]byte) error {
	h.t.Helper()
	return h.ends(func(f *os.File) error { return c.Receive(h.t.Context(), f) }, func(f *os.File) error {
		return SendPieces(h.t.Context(), f, sizes(pieces), func(ctx context.Context, s *Sender) error {
			for n := range data {
				for at := 0; at < len(data[n]); at += int(s.link.Geometry().SlotBytes) {
					if err := s.Put(ctx, n, int64(at), func(dst []byte) (int, error) { return copy(dst, data[n][at:]), nil }); err != nil {
						return err
					}
				}
			}
			return nil
		})
	})
}

// received is what came of pieces.
type received struct {
	data [][]byte
	same [][]bool // by units
}

// take takes what comes.
func take(pieces []record.GPUPiece, f *os.File) (*received, error) {
	r := &received{}
	for _, p := range pieces {
		r.data, r.same = append(r.data, make([]byte, p.Size)), append(r.same, make([]bool, p.Size/Unit))
	}
	err := ReceivePieces(context.Background(), f, sizes(pieces), func(c Chunk, release func()) error {
		for at := c.Offset; at < c.Offset+c.Same; at += Unit {
			r.same[c.Piece][at/Unit] = true
		}
		copy(r.data[c.Piece][c.Offset:], c.Data)
		release()
		return nil
	})
	return r, err
}

// TestPrecopy copies memory that its owner goes on to write to, of two devices, and holds it afterwards: what was sent as the same is what had been sent before, and all else is sent.
func TestPrecopy(t *testing.T) {
	h := newHost(t)
	owner, keeper := h.startWide(), h.startWide()
	pieces := h.pieces(14, 2, 4, 6)
	files, err := owner.Make(t.Context(), pieces)
	if err != nil {
		t.Fatal(err)
	}
	defer CloseAll(files)
	var was [][]byte
	for n, p := range pieces {
		was = append(was, content(n, p.Size))
	}
	if err := h.put(owner, pieces, was); err != nil {
		t.Fatal(err)
	}
	if able, err := keeper.Plan(t.Context(), pieces); err != nil || !able {
		t.Fatalf("%v, %v", able, err)
	}
	ours, theirs := sockets(t)
	var before *received
	ended := make(chan error, 1)
	go func() {
		var err error
		before, err = take(pieces, ours)
		ended <- err
	}()
	if err := keeper.Begin(t.Context(), theirs); err != nil {
		t.Fatal(err)
	}
	for n, p := range pieces {
		for at := int64(0); at < p.Size; at += 2 * Unit {
			file := files[n]
			if n == 3 && at >= 2*Unit { // gone meanwhile
				file = nil
			}
			if err := keeper.Precopy(t.Context(), Part{Piece: n, Offset: at, Length: 2 * Unit}, file); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := errors.Join(keeper.Precopied(t.Context()), <-ended); err != nil {
		t.Fatal(err)
	}
	now := make([][]byte, len(was))
	for n := range was {
		now[n] = bytes.Clone(was[n])
	}
	now[0][3*Unit+12345]++   // one byte
	now[0][Unit+Unit-1] = 1  // of what was zero
	clear(now[2][:Unit])     // zero now
	now[3][2*Unit+77] = 0xff // of what was taken for zeros, and never was
	if err := h.put(owner, pieces, now); err != nil {
		t.Fatal(err)
	}
	if err := keeper.Hold(t.Context(), pieces, files, []int{1, 2, 3, 4}); err != nil {
		t.Fatal(err)
	}
	ours, theirs = sockets(t)
	var after *received
	go func() {
		var err error
		after, err = take(pieces, ours)
		ended <- err
	}()
	if err := errors.Join(keeper.Send(t.Context(), theirs), <-ended); err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{"0:1": true, "0:3": true, "2:0": true}
	for at := 2; at < 6; at++ {
		want[fmt.Sprintf("3:%d", at)] = true // none of these is zero
	}
	for n := range pieces {
		for at, same := range after.same[n] {
			unit := after.data[n][at*Unit:][:Unit]
			if same {
				unit = before.data[n][at*Unit:][:Unit]
			}
			if !bytes.Equal(unit, now[n][at*Unit:][:Unit]) {
				t.Errorf("unit %d of piece %d is another", at, n)
			}
			if changed := want[fmt.Sprintf("%d:%d", n, at)]; same == changed {
				t.Errorf("unit %d of piece %d: the same: %t", at, n, same)
			}
		}
	}
}

// TestPrecopyNot has kernels that the driver does not take, that fail, or that compute something else, and a device without room: it is not begun.
func TestPrecopyNot(t *testing.T) {
	for _, said := range []string{"cuModuleLoadData * error 218 always", "cryo_sums * error 700", "cryo_sums.wrong * error 1", "cuMemAlloc * error 2 always", ""} {
		t.Run(said, func(t *testing.T) {
			h := newHost(t)
			h.Order(said)
			c := h.startWide()
			if said == "" {
				c = h.start() // with slots of less than a unit
			}
			if able, err := c.Plan(t.Context(), h.pieces(2, 2)); able || err != nil {
				t.Errorf("%v, %v", able, err)
			}
			if _, err := c.Make(t.Context(), h.pieces(2)); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestPrecopyRefuses: a part is copied once, of what was planned, and all of it before anything is held for what it was.
func TestPrecopyRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		do  func(c *Keeper, pieces []record.GPUPiece, files []*os.File) error
		say string
	}{
		"before it has begun": {func(c *Keeper, _ []record.GPUPiece, files []*os.File) error {
			return c.Precopy(context.Background(), Part{Length: Unit}, files[0])
		}, "not planned"},
		"end before it has begun": {func(c *Keeper, _ []record.GPUPiece, _ []*os.File) error { return c.Precopied(context.Background()) }, "nothing has begun"},
		"held before all is copied": {func(c *Keeper, pieces []record.GPUPiece, files []*os.File) error {
			return c.Hold(context.Background(), pieces, files, []int{1})
		}, "not the planned piece 0"},
		"another": {func(c *Keeper, pieces []record.GPUPiece, files []*os.File) error {
			return c.Hold(context.Background(), pieces, files, []int{2})
		}, "not the planned piece 1"},
		"half a unit": {func(c *Keeper, _ []record.GPUPiece, files []*os.File) error {
			return c.Precopy(context.Background(), Part{Length: Unit / 2}, files[0])
		}, "a part"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			owner, c := h.startWide(), h.startWide()
			pieces := h.pieces(2)
			files, err := owner.Make(t.Context(), pieces)
			if err != nil {
				t.Fatal(err)
			}
			defer CloseAll(files)
			if able, err := c.Plan(t.Context(), pieces); err != nil || !able {
				t.Fatalf("%v, %v", able, err)
			}
			if err := test.do(c, pieces, files); err == nil || !strings.Contains(err.Error(), test.say) {
				t.Errorf("%v", err)
			}
		})
	}
	if _, err := DecodeKeeperRequest([]byte(`{"do":"precopy"}`), 0); !errdefs.IsInvalidArgument(err) {
		t.Error(err)
	}
}
