package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"time"
	"unsafe"
)

// change gives some pages new random bytes: a share of all, per mille, in runs of so many pages that lie anywhere, or in one run. It
// gives how many they were.
func (p *pattern) change(perMille, run int) int {
	total := max(1, len(p.versions)*perMille/1000)
	if run == 0 || run > total {
		run = total
	}
	runs := total / run
	// Each run is somewhere in a stretch of its own.
	stretch := len(p.versions) / runs
	x := newXorshift(p.seed+2, uint64(run), p.versions[0]+uint32(perMille))
	for i := range runs {
		first := i * stretch
		if stretch > run {
			first += int(x.next() % uint64(stretch-run))
		}
		for page := first; page < first+run; page++ {
			p.versions[page]++
			p.write(page, p.page(page))
		}
	}
	return runs * run
}

// awaitFilled waits until the kernel has every page that is not zero, by /proc/self/pagemap: looking does not bring them in.
// Source: the kernel's Documentation/admin-guide/mm/pagemap.rst.
func (p *pattern) awaitFilled() error {
	f, err := os.Open("/proc/self/pagemap")
	if err != nil {
		return fmt.Errorf("look for pages: %w", err)
	}
	defer f.Close()
	const present = 3 << 62 // or swapped out
	first := int64(uintptr(unsafe.Pointer(&p.pages[0])) / pageSize)
	buffer := make([]byte, 64<<10)
	for page := 0; page < len(p.versions); {
		n, err := f.ReadAt(buffer[:min(len(buffer), 8*(len(p.versions)-page))], 8*(first+int64(page)))
		if err != nil {
			return fmt.Errorf("look for pages: %w", err)
		}
		missing := false
		for i := 0; i+8 <= n && !missing; i += 8 {
			missing = binary.LittleEndian.Uint64(buffer[i:])&present == 0 && p.kind(page) != zero
			if !missing {
				page++
			}
		}
		if missing {
			time.Sleep(5 * time.Millisecond)
		}
	}
	return nil
}
