package device

import (
	"fmt"
	"slices"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/record"
)

// Limits of what is believed.
const (
	Granularity = 2 << 20 // sizes are multiples of it: the least the driver maps
	maxSize     = 1 << 40
	maxAddress  = 1 << 57
	MaxPieces   = 1 << 20
	maxDevices  = 64
	Batch       = 32 // pieces in a message
)

// check is of a piece, whose address says in what order it is sent.
func check(p record.GPUPiece) error {
	if _, err := ParseUUID(p.Device); err != nil {
		return err
	}
	if p.Size <= 0 || p.Size%Granularity != 0 || p.Size > maxSize || p.Address%Granularity != 0 || p.Address > maxAddress {
		return fmt.Errorf("device memory of %d bytes at %#x: %w", p.Size, p.Address, errdefs.ErrInvalidArgument)
	}
	return nil
}

// DevicesOf are those that pieces are on, each once.
func DevicesOf(pieces []record.GPUPiece) (devices []string) {
	for _, p := range pieces {
		if !slices.Contains(devices, p.Device) {
			devices = append(devices, p.Device)
		}
	}
	return devices
}

// sum is of sizes.
func sum(pieces []record.GPUPiece) (bytes int64) {
	for _, p := range pieces {
		bytes += p.Size
	}
	return bytes
}
