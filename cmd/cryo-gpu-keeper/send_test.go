//go:build cgo

package main

import (
	"slices"
	"testing"

	"github.com/cryo-project/cryo/image/spec"
	"github.com/cryo-project/cryo/runtime/gpu/ring"
)

const mib = 1 << 20

// TestWindows: what is sent side by side.
func TestWindows(t *testing.T) {
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
}
