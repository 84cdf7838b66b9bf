package image

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/format"
)

// slots are a bounded number of buffers of a frame's length. They lie outside of Go's heap, which would grow to twice their
// length, and in huge pages where there are some: memory is touched for the first time while processes stand still.
type slots struct {
	memory []byte
	free   chan []byte
	unused chan []byte // those that were never used: they cost nothing
}

func newSlots(n int) (*slots, error) {
	memory, err := unix.Mmap(-1, 0, n*format.MaxFrame, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("get memory for frames: %w", err)
	}
	_ = unix.Madvise(memory, unix.MADV_HUGEPAGE) // without, it is only slower
	s := &slots{memory: memory, free: make(chan []byte, n), unused: make(chan []byte, n)}
	for i := range n {
		s.unused <- memory[i*format.MaxFrame : (i+1)*format.MaxFrame : (i+1)*format.MaxFrame]
	}
	return s, nil
}

// try returns a slot; nil if all are in use.
func (s *slots) try() []byte {
	select {
	case slot := <-s.free:
		return slot
	default:
	}
	select {
	case slot := <-s.unused:
		return slot
	default:
		return nil
	}
}

// touch asks the kernel for the memory of the first slots, so many bytes. Kernels before Linux 5.14 make it when the slots are used.
func (s *slots) touch(bytes int64) {
	_ = unix.Madvise(s.memory[:min(bytes, int64(len(s.memory)))], unix.MADV_POPULATE_WRITE) // without, it is only slower
}

// left is how many are not in use.
func (s *slots) left() int { return len(s.free) + len(s.unused) }

// take waits for a slot.
func (s *slots) take(ctx context.Context) ([]byte, error) {
	if slot := s.try(); slot != nil {
		return slot, nil
	}
	select {
	case slot := <-s.free:
		return slot, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (s *slots) put(slot []byte) {
	if slot != nil {
		s.free <- slot
	}
}

// release unmaps the memory. The caller must not use a slot afterwards.
func (s *slots) release() { _ = unix.Munmap(s.memory) } // fails only for what was not mapped
