package twintest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Page is the size of a page; other hosts are not tested.
const Page = 4096

// What is at Lazy+n has its twin at Twin+n. There are a number of slots, of a length that is no multiple of anything.
const (
	Lazy      = 0x10000000000
	Twin      = 0x20000000000
	SlotBytes = 700 * Page
	spare     = 0x1000000000 // added to either where a slot is moved
	span      = 16 << 20     // from slot to slot
)

// Slot is the address of a slot, counted from 0, as it is at first.
func Slot(base uint64, slot int) uint64 { return base + uint64(slot)*span }

// Content fills one page as it was when it was dumped, by its address in Lazy; false: it is zeros.
func Content(seed, addr uint64, to []byte) bool {
	r := rand.New(rand.NewPCG(seed, addr))
	if r.IntN(3) == 0 {
		return false
	}
	for i := 0; i < len(to); i += 8 {
		binary.NativeEndian.PutUint64(to[i:], r.Uint64()|1)
	}
	return true
}

// Map makes all slots at base, of zeros.
func Map(base uint64, slots int) error {
	for slot := range slots {
		_, _, errno := unix.Syscall6(unix.SYS_MMAP, uintptr(Slot(base, slot)), SlotBytes, unix.PROT_READ|unix.PROT_WRITE,
			unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED_NOREPLACE, ^uintptr(0), 0)
		if errno != 0 {
			return fmt.Errorf("map at %#x: %w", Slot(base, slot), errno)
		}
	}
	return nil
}

// Fill gives all slots at base their content.
func Fill(base uint64, slots int, seed uint64) {
	var page [Page]byte
	for slot := range slots {
		for at := uint64(0); at < SlotBytes; at += Page {
			if Content(seed, Slot(Lazy, slot)+at, page[:]) {
				copy(bytesAt(Slot(base, slot)+at, Page), page[:])
			}
		}
	}
}

// Sprinkle writes to a page of each 64 in all slots at base.
func Sprinkle(base uint64, slots int) {
	for slot := range slots {
		for at := uint64(0); at < SlotBytes; at += 64 * Page {
			bytesAt(Slot(base, slot)+at, Page)[0] = 1
		}
	}
}

// maxSlots bounds the slots.
const maxSlots = 64

// Memory is what is changed and compared.
type Memory struct {
	random uint64
	slots  [maxSlots]slot
	count  uint64
	moves  uint64
}

// slot is a range of pages that is mapped, unless pages is 0.
type slot struct{ offset, pages uint64 }

// New knows all slots of Lazy and Twin, which are mapped and filled.
func New(slots int, seed uint64) *Memory {
	m := &Memory{random: seed*2 + 1, count: uint64(slots)}
	for i := range slots {
		m.slots[i] = slot{offset: uint64(i) * span, pages: SlotBytes / Page}
	}
	return m
}

func (m *Memory) number(n uint64) uint64 {
	m.random ^= m.random << 13
	m.random ^= m.random >> 7
	m.random ^= m.random << 17
	return m.random >> 11 % n
}

// What Run gives; above childStatus it is a child's.
const (
	differs      = 20
	differsAtEnd = 21
	childStatus  = 100
)

// Explain returns what a result of Run other than 0 means.
func Explain(status int) string {
	switch {
	case status > childStatus:
		return "in a child: " + Explain(status-childStatus)
	case status == differs:
		return "pages differ from their twins"
	case status == differsAtEnd:
		return "pages differ from their twins in the end"
	}
	return fmt.Sprintf("a call to the kernel fails (%d)", status)
}

// Run does a number of things and compares all in the end; children are forked to the depth given. It gives 0 if all is well.
func (m *Memory) Run(steps, forks int) int {
	for range steps {
		if status := m.step(forks); status != 0 {
			return status
		}
	}
	for i := range m.count {
		s := &m.slots[i]
		if !bytes.Equal(bytesAt(Lazy+s.offset, s.pages*Page), bytesAt(Twin+s.offset, s.pages*Page)) {
			return differsAtEnd
		}
	}
	return 0
}

func (m *Memory) step(forks int) int {
	s := &m.slots[m.number(m.count)]
	if s.pages < 2 {
		return 0
	}
	first := m.number(s.pages)
	count := 1 + m.number(min(s.pages-first, 90))
	at, length := s.offset+first*Page, count*Page
	switch m.number(9) {
	case 0: // its end goes
		rest := s.pages - first
		s.pages = first
		return both(10, at, func(addr uint64) unix.Errno {
			_, _, errno := unix.RawSyscall(unix.SYS_MUNMAP, uintptr(addr), uintptr(rest*Page), 0)
			return errno
		})
	case 1: // it moves, and grows
		m.moves++
		from, to, pages := s.offset, spare+m.moves*span, s.pages
		s.offset, s.pages = to, pages+3
		return both(11, 0, func(base uint64) unix.Errno {
			_, _, errno := unix.RawSyscall6(unix.SYS_MREMAP, uintptr(base+from), uintptr(pages*Page), uintptr((pages+3)*Page),
				unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED, uintptr(base+to), 0)
			return errno
		})
	case 2, 3:
		return both(12, at, func(addr uint64) unix.Errno {
			_, _, errno := unix.RawSyscall(unix.SYS_MADVISE, uintptr(addr), uintptr(length), unix.MADV_DONTNEED)
			return errno
		})
	case 4, 5:
		for i := uint64(0); i < length; i += 8 {
			v := m.number(1 << 40)
			binary.NativeEndian.PutUint64(bytesAt(Lazy+at+i, 8), v)
			binary.NativeEndian.PutUint64(bytesAt(Twin+at+i, 8), v)
		}
	case 6: // a byte of a page: the rest of it must come
		bytesAt(Lazy+at, 1)[0], bytesAt(Twin+at, 1)[0] = 7, 7
	case 7:
		if !bytes.Equal(bytesAt(Lazy+at, length), bytesAt(Twin+at, length)) {
			return differs
		}
	case 8:
		if forks > 0 {
			return m.fork(forks - 1)
		}
	}
	return 0
}

// both does the same to memory and its twin.
func both(status int, addr uint64, do func(addr uint64) unix.Errno) int {
	if do(Lazy+addr) != 0 {
		return status
	}
	if do(Twin+addr) != 0 {
		return status
	}
	return 0
}

// fork has a child go on in another way, beside the parent for some steps.
func (m *Memory) fork(forks int) int {
	pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 {
		return 30
	}
	if pid == 0 {
		m.random ^= 0x5555
		status := m.Run(40, forks)
		unix.RawSyscall(unix.SYS_EXIT_GROUP, uintptr(status), 0, 0)
	}
	beside := m.Run(10, 0)
	var status int32
	for {
		_, _, errno := unix.RawSyscall6(unix.SYS_WAIT4, pid, uintptr(unsafe.Pointer(&status)), 0, 0, 0, 0)
		if errno == 0 {
			break
		}
		if errno != unix.EINTR {
			return 31
		}
	}
	if status != 0 {
		return childStatus + int(status>>8)
	}
	return beside
}

func bytesAt(addr, length uint64) []byte {
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&addr))), length)
}
