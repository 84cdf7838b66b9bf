package fill

import (
	"errors"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// hugePage is the length of a huge page; where it is another, the kernel refuses and pages stay small.
const hugePage = 2 << 20

// calmly is the priority (setpriority(2)) with which pages are made huge: the container comes first.
const calmly = 10

// atOnce bounds what one call to the kernel makes huge, so that a process that has ended is noticed.
const atOnce = 64 << 20

// huge is memory of a process that is better off in huge pages.
type huge struct {
	process int // a pidfd
	blocks  []Extent
}

// newHuge returns what of a process is to be in huge pages: what it had advised, and was all there. nil: nothing.
func newHuge(pid int, l *Layout) *huge {
	blocks := l.huge()
	if len(blocks) == 0 || pid <= 0 {
		return nil
	}
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil // pages stay small
	}
	return &huge{process, blocks}
}

// huge returns ranges of whole huge pages that have been advised and have all their pages.
func (l *Layout) huge() (blocks []Extent) {
	var full Extent // pieces that follow each other without a gap
	end := func() {
		start := (full.Addr + hugePage - 1) &^ (hugePage - 1)
		stop := (full.Addr + full.Length) &^ (hugePage - 1)
		for ; start < stop; start += hugePage {
			if !l.advised(start) {
				continue
			}
			if n := len(blocks); n > 0 && blocks[n-1].Addr+blocks[n-1].Length == start && blocks[n-1].Length < atOnce {
				blocks[n-1].Length += hugePage
			} else {
				blocks = append(blocks, Extent{start, hugePage})
			}
		}
	}
	for _, p := range l.Pieces {
		for _, e := range p {
			if full.Addr+full.Length == e.Addr {
				full.Length += e.Length
				continue
			}
			end()
			full = e
		}
	}
	end()
	return blocks
}

// advised reports whether a huge page at addr is all in one region that is to have such.
func (l *Layout) advised(addr uint64) bool {
	for _, r := range l.Regions {
		if r.Huge && r.Start <= addr && addr+hugePage <= r.End {
			return true
		}
	}
	return false
}

// Enlarge makes memory huge pages that was such, as far as it is known, when Run has filled it: the kernel fills small ones only. It
// takes as long as filling, which is why it comes afterwards.
func (f *Filler) Enlarge() {
	f.mu.Lock()
	all := f.huge
	f.huge = nil
	f.mu.Unlock()
	if len(all) == 0 {
		return
	}
	runtime.LockOSThread() // for good: its priority is not that of others
	_ = unix.Setpriority(unix.PRIO_PROCESS, 0, calmly)
	for _, h := range all {
		h.enlarge()
	}
}

// enlarge stops where the process has ended. What fails otherwise is small still, and no worse than before.
func (h *huge) enlarge() {
	defer unix.Close(h.process)
	for _, b := range h.blocks {
		v := struct{ base, length uintptr }{uintptr(b.Addr), uintptr(b.Length)}
		_, _, errno := unix.Syscall6(unix.SYS_PROCESS_MADVISE, uintptr(h.process), uintptr(unsafe.Pointer(&v)), 1, unix.MADV_COLLAPSE, 0, 0)
		if errors.Is(errno, unix.ESRCH) {
			return
		}
	}
}
