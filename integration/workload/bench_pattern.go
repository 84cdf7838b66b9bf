package main

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// pattern is memory whose every page follows from its number, its version and a seed, so that it is written and compared at
// the speed of memory, on all cores, and nothing of it need be kept.
type pattern struct {
	pages    []byte
	versions []uint32 // of each page: how often it was changed
	seed     uint64
	mixed    bool
	text     []byte // of this program; code is made of it
}

func newPattern(mib int, seed uint64, mixed bool) (*pattern, error) {
	if mib < 1 {
		return nil, fmt.Errorf("memory of %d MiB", mib)
	}
	p := &pattern{seed: seed, mixed: mixed}
	var err error
	if p.pages, err = unix.Mmap(-1, 0, mib<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS); err != nil {
		return nil, fmt.Errorf("map memory: %w", err)
	}
	p.versions = make([]uint32, len(p.pages)/pageSize)
	if mixed {
		if p.text, err = ownText(); err != nil {
			return nil, err
		}
	}
	p.parallel(func(page int, _ []byte) { p.write(page, p.page(page)) })
	return p, nil
}

// ownText is the machine code of this program.
func ownText() ([]byte, error) {
	f, err := elf.Open("/proc/self/exe")
	if err != nil {
		return nil, fmt.Errorf("read own program: %w", err)
	}
	defer f.Close()
	section := f.Section(".text")
	if section == nil {
		return nil, errors.New("read own program: it has no .text")
	}
	text, err := section.Data()
	if err == nil && len(text) < pageSize {
		err = errors.New("read own program: its .text is too short")
	}
	return text, err
}

func (p *pattern) page(n int) []byte { return p.pages[n*pageSize : (n+1)*pageSize] }

// The kinds of pages.
const (
	random = iota
	zero
	code
)

// mixedRun is how many pages of one kind come together.
const mixedRun = 16

// kind of a page: of 20 runs of mixed memory 14 are zero and 3 are code. What was changed is random.
func (p *pattern) kind(page int) int {
	if !p.mixed || p.versions[page] > 0 {
		return random
	}
	x := newXorshift(p.seed, uint64(page/mixedRun), 0)
	switch n := x.next() % 20; {
	case n < 14:
		return zero
	case n < 17:
		return code
	}
	return random
}

// write gives a page its content.
func (p *pattern) write(page int, to []byte) {
	x := newXorshift(p.seed+1, uint64(page), p.versions[page])
	switch p.kind(page) {
	case zero:
		clear(to)
	case code:
		p.writeCode(&x, to)
	default:
		for i := 0; i < pageSize; i += 8 {
			binary.LittleEndian.PutUint64(to[i:], x.next())
		}
	}
}

// writeCode makes a page of this program's machine code, 64 bytes from some place and 4 random ones in turns: whole pages of
// one small program would be found again, and packed to nothing. zstd makes 65 % of this on its level 1, 44 % on 3; of the
// machine code of containerd and of gcc's compiler it makes 42 and 49 % on level 1.
func (p *pattern) writeCode(x *xorshift, to []byte) {
	const piece, noise = 64, 4
	for len(to) > 0 {
		r := x.next()
		from := p.text[(r>>32)%uint64(len(p.text)-piece):]
		n := copy(to, from[:piece])
		var bytes [noise]byte
		binary.LittleEndian.PutUint32(bytes[:], uint32(r))
		n += copy(to[n:], bytes[:])
		to = to[n:]
	}
}

// damaged counts the pages that are not what was written.
func (p *pattern) damaged() int {
	var damaged atomic.Int64
	p.parallel(func(page int, buffer []byte) {
		p.write(page, buffer)
		if !bytes.Equal(buffer, p.page(page)) {
			damaged.Add(1)
		}
	})
	return int(damaged.Load())
}

// scatter reads a byte of each page, in the same order in each process that was restored from one, counts them, and gives the longest time that one took.
func (p *pattern) scatter(read *atomic.Int64) (longest time.Duration) {
	var sum byte
	for _, page := range rand.New(rand.NewPCG(p.seed, 1)).Perm(len(p.versions)) {
		began := time.Now()
		sum += p.pages[page*pageSize]
		longest = max(longest, time.Since(began))
		read.Add(1)
	}
	runtime.KeepAlive(sum)
	return longest
}

// parallel calls f for every page, on all cores, with a buffer of one page.
func (p *pattern) parallel(f func(page int, buffer []byte)) {
	const batch = 1024
	var next atomic.Int64
	var wait sync.WaitGroup
	for range runtime.NumCPU() {
		wait.Go(func() {
			buffer := make([]byte, pageSize)
			for {
				first := int(next.Add(batch)) - batch
				if first >= len(p.versions) {
					return
				}
				for page := first; page < min(first+batch, len(p.versions)); page++ {
					f(page, buffer)
				}
			}
		})
	}
	wait.Wait()
}

// xorshift is Marsaglia's xorshift64 generator (Journal of Statistical Software 8(14), 2003).
type xorshift uint64

// newXorshift mixes its seed as splitmix64 does, so that neighbours have nothing in common.
func newXorshift(seed, page uint64, version uint32) xorshift {
	z := (seed+1)*0x9e3779b97f4a7c15 + page*0xbf58476d1ce4e5b9 + uint64(version)*0x94d049bb133111eb
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	z ^= z >> 31
	return xorshift(z | 1)
}

func (x *xorshift) next() uint64 {
	v := uint64(*x)
	v ^= v << 13
	v ^= v >> 7
	v ^= v << 17
	*x = xorshift(v)
	return v
}
