package image

import (
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/format"
)

// TestSlotsTouched counts the pages that are there of slots that were asked for, and of others.
func TestSlotsTouched(t *testing.T) {
	const half = 16
	s, err := newSlots(2 * half)
	if err != nil {
		t.Fatal(err)
	}
	defer s.release()
	_ = unix.Madvise(s.memory, unix.MADV_NOHUGEPAGE) // a kernel without large pages refuses it
	s.touch(half*format.MaxFrame - 1)
	resident := func(first int) (pages int) {
		state := make([]byte, half*format.MaxFrame/unix.Getpagesize())
		at := s.memory[first*format.MaxFrame:]
		if _, _, failed := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&at[0])), half*format.MaxFrame, uintptr(unsafe.Pointer(&state[0]))); failed != 0 {
			t.Fatal(failed)
		}
		for _, b := range state {
			pages += int(b & 1)
		}
		return pages
	}
	if n := resident(0); n != half*format.MaxFrame/unix.Getpagesize() {
		t.Errorf("%d pages are there of what was asked for", n)
	}
	if n := resident(half); n != 0 {
		t.Errorf("%d pages are there of what was not asked for", n)
	}
	s.touch(1 << 40)
	if n := resident(half); n == 0 {
		t.Error("nothing is there of what was asked for beyond the end")
	}
}
