package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// writer is bench that writes to a little of its memory all the time, and unmaps and maps some, often where other pages were. What it writes
// to is one part of its memory, and rarely anything else: kernels track huge pages as a whole.
type writer struct {
	*bench
	mu    sync.Mutex // guards the memory, and what follows
	small []mapped
	turns int
	err   error
}

// mapped is a mapping, and what must be in it.
type mapped struct{ pages, content []byte }

func startWriter(flags *flag.FlagSet, args []string) (workload, error) {
	part := flags.Int("part", 16, "of its memory that it writes to: one of so many")
	pause := flags.Duration("pause", 20*time.Millisecond, "between two times")
	b, err := startBench(flags, args)
	if err != nil {
		return nil, err
	}
	w := &writer{bench: b.(*bench)}
	go func() {
		for {
			w.turn(*part)
			time.Sleep(*pause)
		}
	}()
	return w, nil
}

// turn writes once.
func (w *writer) turn(part int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.turns++
	all := len(w.memory.versions)
	for i := range 16 {
		w.write((w.turns*16 + i) * 61 % (all/part + 1))
	}
	if w.turns%64 == 0 {
		w.write(w.turns * 7919 % all)
	}
	const most = 16
	if len(w.small) == most {
		i := w.turns * 7 % most
		w.err = errors.Join(w.err, unix.Munmap(w.small[i].pages))
		w.small[i] = w.small[most-1]
		w.small = w.small[:most-1]
	}
	size := (1 + w.turns*13%40) * pageSize
	// Of another kind than the rest: a mapping that the kernel joins to its neighbour has it take all of that for written to.
	pages, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		w.err = errors.Join(w.err, err)
		return
	}
	content := make([]byte, size) // every third page is never written to
	for page := range size / pageSize {
		if page%3 > 0 {
			_, _ = newRandom(uint64(w.turns)<<16 + uint64(page)).Read(content[page*pageSize : (page+1)*pageSize]) // never fails
			copy(pages[page*pageSize:], content[page*pageSize:(page+1)*pageSize])
		}
	}
	w.small = append(w.small, mapped{pages, content})
}

// write gives a page new random bytes.
func (w *writer) write(page int) {
	w.memory.versions[page]++
	w.memory.write(page, w.memory.page(page))
}

// Check reads all of the memory.
func (w *writer) Check() (map[string]any, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, m := range w.small {
		if !bytes.Equal(m.pages, m.content) {
			return nil, fmt.Errorf("mapping %d is not what was written", i)
		}
	}
	if w.err != nil {
		return nil, w.err
	}
	_, err := w.bench.Do("verify", nil)
	return map[string]any{"turns": w.turns}, err
}
