package gpu

import (
	"time"

	"github.com/cryo-project/cryo/runtime/gpu/interrupt"
)

// Interrupts ask kernels to return early.
type Interrupts interface {
	// Raise asks those of a process, for no longer than lease. false: it has nothing to be asked by.
	Raise(pid int, lease time.Duration) (bool, error)
	// Lower ends that.
	Lower(pid int) error
}

// Flags are the interrupts of programs that were made with contrib/cuda/cryo_interrupt.cuh.
type Flags struct{}

var _ Interrupts = Flags{}

// Raise implements [Interrupts].
func (Flags) Raise(pid int, lease time.Duration) (bool, error) {
	n, err := interrupt.RaiseFor(pid, lease)
	return n > 0, err
}

// Lower implements [Interrupts].
func (Flags) Lower(pid int) error {
	_, err := interrupt.Lower(pid)
	return err
}
