package keeper

import (
	"fmt"
	"slices"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/runtime/gpu/driver"
)

// Piece is device memory of one allocation.
type Piece struct {
	Device string `json:"device"` // its UUID, "GPU-…"
	Size   int64  `json:"size"`   // bytes, a multiple of 2 MiB
	// Address is where its process has it, which says in what order it is sent; 0 where that does not matter.
	Address uint64 `json:"address,omitempty"`
}

// Limits of what is believed.
const (
	Granularity = 2 << 20 // sizes are multiples of it: the least the driver maps
	maxSize     = 1 << 40
	maxAddress  = 1 << 57
	maxPieces   = 1 << 20
	maxDevices  = 64
	batch       = 32 // pieces in a message
)

func (p Piece) check() error {
	if _, err := driver.ParseUUID(p.Device); err != nil {
		return err
	}
	if p.Size <= 0 || p.Size%Granularity != 0 || p.Size > maxSize || p.Address%Granularity != 0 || p.Address > maxAddress {
		return fmt.Errorf("device memory of %d bytes at %#x: %w", p.Size, p.Address, errdefs.ErrInvalidArgument)
	}
	return nil
}

// DevicesOf are those that pieces are on, each once.
func DevicesOf(pieces []Piece) (devices []string) {
	for _, p := range pieces {
		if !slices.Contains(devices, p.Device) {
			devices = append(devices, p.Device)
		}
	}
	return devices
}

// sum is of sizes.
func sum(pieces []Piece) (bytes int64) {
	for _, p := range pieces {
		bytes += p.Size
	}
	return bytes
}
