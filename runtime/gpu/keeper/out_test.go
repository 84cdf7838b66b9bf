package keeper

import (
	"fmt"
	"slices"
	"testing"

	"github.com/cryo-project/cryo/image/spec"
	"github.com/cryo-project/cryo/runtime/gpu/ring"
)

// TestWindows: windows are sent side by side, each in the order of addresses, and everything is sent once.
func TestWindows(t *testing.T) {
	const part = mib
	pieces := []held{
		{GPUPiece: spec.GPUPiece{Size: ring.Window, Address: 10*ring.Window - 4*mib}}, // in two windows
		{GPUPiece: spec.GPUPiece{Size: 2 * mib, Address: 11*ring.Window - 4*mib}},
		{GPUPiece: spec.GPUPiece{Size: 12 * mib, Address: 11 * ring.Window}},
		{GPUPiece: spec.GPUPiece{Size: 3 * ring.Window, Address: 12 * ring.Window}},
		{GPUPiece: spec.GPUPiece{Size: 2 * mib, Address: 10 * ring.Window}}, // of another process
	}
	numbers := []int{0, 1, 2, 3, 4}
	var lengths []int
	for _, w := range windows(pieces, numbers) {
		lengths = append(lengths, len(w))
	}
	if want := []int{1, 2, 1, 1, 1, 1, 1}; !slices.Equal(lengths, want) {
		t.Fatalf("windows of %v pieces, not %v", lengths, want)
	}
	for _, lanes := range []int{1, 3, 16} {
		t.Run(fmt.Sprint(lanes), func(t *testing.T) {
			o := &outgoing{pieces: pieces, windows: windows(pieces, numbers), lanes: lanes}
			type window struct {
				number uint64
				other  bool // of the other process
			}
			next, left := map[window]uint64{}, map[window]int64{} // addresses, bytes
			for i, p := range pieces {
				for at := int64(0); at < p.Size; at += mib {
					left[window{(p.Address + uint64(at)) / ring.Window, i == 4}] += mib
				}
			}
			begun, most := map[window]bool{}, 0
			for len(o.windows) > 0 {
				s := o.cut(part)
				from, to := pieces[s.piece].Address+uint64(s.from), pieces[s.piece].Address+uint64(s.to)
				w := window{from / ring.Window, s.piece == 4}
				if s.to <= s.from || s.to-s.from > part || (to-1)/ring.Window != w.number || from < next[w] {
					t.Fatalf("%+v after %#x", s, next[w])
				}
				begun[w], next[w] = true, to
				most = max(most, len(begun))
				if left[w] -= s.to - s.from; left[w] == 0 {
					delete(begun, w)
				}
			}
			for w, n := range left {
				if n != 0 {
					t.Errorf("%d bytes of %v are left", n, w)
				}
			}
			if want := min(lanes, len(left)); most != want {
				t.Errorf("%d windows were side by side, not %d", most, want)
			}
		})
	}
}
