package main

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strconv"

	"golang.org/x/sys/unix"
)

const pageSize = 4096

// memory is a mapping with known content. Its pages do not belong to Go's heap, so they change only on request.
type memory struct {
	pages    []byte
	expected [sha256.Size]byte // of pages
	random   *rand.ChaCha8
}

// fills are the contents memory can have: pages that do not compress, that compress well, that are zero, or all of these
// in turns.
var fills = map[string]func(page int) string{
	"random": func(int) string { return "random" },
	"text":   func(int) string { return "text" },
	"zero":   func(int) string { return "zero" },
	"mixed":  func(page int) string { return [...]string{"random", "text", "zero", "text"}[page/64%4] },
}

func newMemory(mib int, seed uint64, fill string) (*memory, error) {
	choose, ok := fills[fill]
	if !ok {
		return nil, fmt.Errorf("no fill %q", fill)
	}
	m := &memory{random: newRandom(seed)}
	if mib > 0 {
		var err error
		if m.pages, err = unix.Mmap(-1, 0, mib<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS); err != nil {
			return nil, fmt.Errorf("map memory: %w", err)
		}
	}
	for i := 0; i < len(m.pages); i += pageSize {
		m.fill(m.pages[i:i+pageSize], choose(i/pageSize))
	}
	m.expected = sha256.Sum256(m.pages)
	return m, nil
}

func newRandom(seed uint64) *rand.ChaCha8 {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	return rand.NewChaCha8(key)
}

func (m *memory) fill(page []byte, with string) {
	switch with {
	case "random":
		_, _ = m.random.Read(page) // never fails
	case "text":
		word := fmt.Appendf(nil, "page with %d, over and over. ", m.random.Uint64()%1000)
		for i := range page {
			page[i] = word[i%len(word)]
		}
	default:
		clear(page)
	}
}

// check compares the memory with what was written to it.
func (m *memory) check() (map[string]any, error) {
	sum := sha256.Sum256(m.pages)
	state := map[string]any{"bytes": len(m.pages), "sha256": hex.EncodeToString(sum[:])}
	if sum != m.expected {
		return state, errors.New("memory is not what was written")
	}
	return state, nil
}

// change fills a share of the pages, in per mille, with new random bytes, spread evenly.
func (m *memory) change(perMille int) {
	total := len(m.pages) / pageSize
	n := total * perMille / 1000
	for i := range n {
		page := i * total / n * pageSize
		m.fill(m.pages[page:page+pageSize], "random")
	}
	m.rehash()
}

// rehash makes the memory as it is what is expected.
func (m *memory) rehash() { m.expected = sha256.Sum256(m.pages) }

// counting holds memory.
type counting struct{ memory *memory }

func startCount(flags *flag.FlagSet, args []string) (workload, error) {
	mib := flags.Int("memory", 1, "memory to hold, in MiB")
	seed := flags.Uint64("seed", 1, "seed of the random bytes")
	fill := flags.String("fill", "random", "random, text, zero or mixed")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	m, err := newMemory(*mib, *seed, *fill)
	return counting{m}, err
}

func (c counting) Check() (map[string]any, error) { return c.memory.check() }

// Do knows "change PERMILLE".
func (c counting) Do(command string, args []string) (map[string]any, error) {
	if command != "change" || len(args) != 1 {
		return nil, fmt.Errorf("unknown command %q", command)
	}
	perMille, err := strconv.Atoi(args[0])
	if err != nil || perMille < 0 || perMille > 1000 {
		return nil, fmt.Errorf("change by %q per mille: not between 0 and 1000", args[0])
	}
	c.memory.change(perMille)
	return c.memory.check()
}
