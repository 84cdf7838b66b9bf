//go:build cgo

package main

import (
	"slices"
	"testing"

	"github.com/cryo-project/cryo/image/record"
	"github.com/cryo-project/cryo/runtime/gpu/device"
)

const mib = 1 << 20

// TestWindows: what is sent side by side.
func TestWindows(t *testing.T) {
	pieces := []held{
		{GPUPiece: record.GPUPiece{Size: device.Window, Address: 10*device.Window - 4*mib}}, // in two windows
		{GPUPiece: record.GPUPiece{Size: 2 * mib, Address: 11*device.Window - 4*mib}},
		{GPUPiece: record.GPUPiece{Size: 12 * mib, Address: 11 * device.Window}},
		{GPUPiece: record.GPUPiece{Size: 3 * device.Window, Address: 12 * device.Window}},
		{GPUPiece: record.GPUPiece{Size: 2 * mib, Address: 10 * device.Window}}, // of another process
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
