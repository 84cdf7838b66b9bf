package segment

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"
	"github.com/containerd/errdefs"
	"github.com/klauspost/compress/zstd"

	"github.com/cryo-project/cryo/image/index"
	"github.com/cryo-project/cryo/image/pages"
)

const page = 4096

func sample(r *rand.Rand, n int, random bool) []byte {
	b := make([]byte, n)
	for i := range b {
		if random || i%16 == 0 {
			b[i] = byte(r.Uint32())
		}
	}
	return b
}

func TestEncode(t *testing.T) {
	enc, err := NewEncoder(Twentieth)
	if err != nil {
		t.Fatal(err)
	}
	defer enc.Close()
	plain, err := NewEncoder(Never)
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	dec, err := NewDecoder()
	if err != nil {
		t.Fatal(err)
	}
	defer dec.Close()
	r := rand.New(rand.NewPCG(1, 1))
	for _, n := range []int{page, 3 * page, 100 * page, index.MaxFrame} {
		for _, random := range []bool{true, false} {
			raw := sample(r, n, random)
			codec, stored := enc.Encode(nil, raw)
			if want := map[bool]index.Codec{true: index.Raw, false: index.Zstd}[random]; codec != want {
				t.Errorf("%d bytes, random %v: codec %s", n, random, codec)
			}
			f := index.Frame{Codec: codec, Stored: int64(len(stored)), Raw: int64(n), Digest: sha256.Sum256(raw), Check: xxhash.Sum64(raw)}
			if got, err := dec.Decode(&f, stored); err != nil || !bytes.Equal(got, raw) {
				t.Errorf("%d bytes, random %v: %v", n, random, err)
			}
			if codec, stored := plain.Encode(nil, raw); codec != index.Raw || &stored[0] != &raw[0] {
				t.Errorf("%d bytes are not stored as they are", n)
			}
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	dec, err := NewDecoder()
	if err != nil {
		t.Fatal(err)
	}
	defer dec.Close()
	z, _ := zstd.NewWriter(nil)
	defer z.Close()
	raw := sample(rand.New(rand.NewPCG(1, 1)), 8*page, false)
	stored := z.EncodeAll(raw, nil)
	bomb := z.EncodeAll(make([]byte, 512<<20), nil)
	window, _ := zstd.NewWriter(nil, zstd.WithWindowSize(128<<20), zstd.WithSingleSegment(false))
	defer window.Close()
	frame := func(change func(f *index.Frame)) index.Frame {
		f := index.Frame{Segment: 3, Offset: 77, Codec: index.Zstd, Stored: int64(len(stored)), Raw: int64(len(raw)), Digest: sha256.Sum256(raw), Check: xxhash.Sum64(raw)}
		change(&f)
		return f
	}
	tests := []struct {
		name   string
		f      index.Frame
		stored []byte
	}{
		{"digest", frame(func(f *index.Frame) { f.Digest[5] ^= 1 }), stored},
		{"check", frame(func(f *index.Frame) { f.Check ^= 1 << 63 }), stored},
		{"codec", frame(func(f *index.Frame) { f.Codec = 7 }), stored},
		{"not zstd", frame(func(f *index.Frame) { f.Stored = 4 }), []byte("text")},
		{"length", frame(func(f *index.Frame) { f.Stored++ }), stored},
		{"shorter", frame(func(f *index.Frame) { f.Raw -= page }), stored},
		{"longer", frame(func(f *index.Frame) { f.Raw += page }), stored},
		{"too long", frame(func(f *index.Frame) { f.Raw = 1 << 40 }), stored},
		{"raw", frame(func(f *index.Frame) { f.Codec = index.Raw }), stored},
		{"bomb", frame(func(f *index.Frame) { f.Stored = int64(len(bomb)) }), bomb},
	}
	for _, test := range tests {
		_, err := dec.Decode(&test.f, test.stored)
		if !errdefs.IsDataLoss(err) || !strings.Contains(err.Error(), "frame at 77 of segment 3") {
			t.Errorf("%s gives %v", test.name, err)
		}
	}
	if n := testing.AllocsPerRun(3, func() { _, _ = dec.Decode(&tests[9].f, bomb) }); n > 100 {
		t.Errorf("a bomb takes %v allocations", n)
	}
}

func pagemap(name string, id uint64, runs ...[2]int64) *pages.Pagemap {
	m := &pages.Pagemap{Name: name, Pages: id}
	for _, r := range runs {
		m.Runs = append(m.Runs, pages.Run{Addr: uint64(r[0]), First: m.Count, Count: r[1]})
		m.Count += r[1]
	}
	return m
}

func TestCut(t *testing.T) {
	const mib = 1 << 20
	got, err := Cut([]*pages.Pagemap{
		pagemap("pagemap-1.img", 5, [2]int64{2*mib - 2*page, 300}, [2]int64{9 * mib, 10}, [2]int64{9*mib + 20*page, 10}),
		pagemap("pagemap-2.img", 6, [2]int64{0, 1}),
	}, page, 2*mib)
	if err != nil {
		t.Fatal(err)
	}
	want := [][]Piece{
		{{5, []pages.Run{{Addr: 2 * mib, First: 2, Count: 256}}}, {5, []pages.Run{{Addr: 3 * mib, First: 258, Count: 42}}}},
		{
			{5, []pages.Run{{Addr: 2*mib - 2*page, First: 0, Count: 2}}},
			{5, []pages.Run{{Addr: 9 * mib, First: 300, Count: 10}, {Addr: 9*mib + 20*page, First: 310, Count: 10}}},
			{6, []pages.Run{{Addr: 0, First: 0, Count: 1}}},
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v", got)
	}
	for _, size := range []int64{0, -1, 1 << 19, 3 << 20, 16 << 30} {
		if _, err := Cut(nil, page, size); !errdefs.IsInvalidArgument(err) {
			t.Errorf("size %d gives %v", size, err)
		}
	}
}

// TestCutProperties: every page is in one piece, pieces keep to their borders, segments to their size.
func TestCutProperties(t *testing.T) {
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 9))
		var maps []*pages.Pagemap
		want := make(map[[2]uint64]uint64) // file, page -> address
		for id := range uint64(1 + r.IntN(30)) {
			m := &pages.Pagemap{Name: fmt.Sprintf("pagemap-%d.img", id), Pages: id}
			addr := uint64(r.IntN(1<<30)) * page
			for range r.IntN(40) {
				n := 1 + r.Int64N(1<<r.IntN(11))
				m.Runs = append(m.Runs, pages.Run{Addr: addr, First: m.Count, Count: n})
				for i := range n {
					want[[2]uint64{uint64(id), uint64(m.Count + i)}] = addr + uint64(i)*page
				}
				m.Count += n
				addr += uint64(n+1+r.Int64N(1<<r.IntN(16))) * page
			}
			maps = append(maps, m)
		}
		size := int64(1) << (20 + r.IntN(5))
		segments, err := Cut(maps, page, size)
		if err != nil {
			t.Fatal(err)
		}
		for _, pieces := range segments {
			var total int64
			for _, p := range pieces {
				total += p.Pages()
				for _, run := range p.Runs {
					if run.Addr/index.MaxFrame != p.Runs[0].Addr/index.MaxFrame || (run.Addr+uint64(run.Count*page)-1)/index.MaxFrame != run.Addr/index.MaxFrame {
						t.Fatalf("piece %+v crosses a border", p)
					}
					for i := range run.Count {
						key := [2]uint64{uint64(p.File), uint64(run.First + i)}
						if want[key] != run.Addr+uint64(i)*page {
							t.Fatalf("page %v is at %x, not %x", key, run.Addr+uint64(i)*page, want[key])
						}
						delete(want, key)
					}
				}
			}
			if total*page > size {
				t.Errorf("a segment of %d bytes, more than %d", total*page, size)
			}
		}
		if len(want) > 0 {
			t.Errorf("%d pages are in no segment", len(want))
		}
	}
}

// TestKeep: pages of zeros are left out of a frame, and those behind them move up.
func TestKeep(t *testing.T) {
	file := make([]byte, 10*page)
	for _, i := range []int{1, 2, 4, 7, 8} {
		file[i*page+i] = byte(i)
	}
	p := Piece{File: 9, Runs: []pages.Run{{Addr: 0x10000, First: 0, Count: 5}, {Addr: 0x20000, First: 5, Count: 5}}}
	var f index.Frame
	buf := make([]byte, index.MaxFrame)
	for _, r := range p.Runs {
		pages := buf[f.Raw:][:copy(buf[f.Raw:], file[r.First*page:(r.First+r.Count)*page])]
		Keep(&f, index.Run{File: p.File, First: r.First, Count: r.Count, Addr: r.Addr}, page, pages)
	}
	raw := buf[:f.Raw]
	Sum(&f, raw)
	want := []index.Run{{File: 9, First: 1, Count: 2, Addr: 0x11000}, {File: 9, First: 4, Count: 1, Addr: 0x14000}, {File: 9, First: 7, Count: 2, Addr: 0x22000}}
	if !reflect.DeepEqual(f.Runs, want) || f.Raw != 5*page || f.Digest != sha256.Sum256(raw) || f.Check != xxhash.Sum64(raw) {
		t.Errorf("got %+v", f)
	}
	for i, n := range []int{1, 2, 4, 7, 8} {
		if !bytes.Equal(raw[i*page:(i+1)*page], file[n*page:(n+1)*page]) {
			t.Errorf("page %d is not page %d of the file", i, n)
		}
	}
}

func FuzzDecode(f *testing.F) {
	enc, _ := NewEncoder(Twentieth)
	_, stored := enc.Encode(nil, sample(rand.New(rand.NewPCG(1, 1)), 4*page, false))
	f.Add(stored, int64(4*page), true)
	f.Add(make([]byte, page), int64(page), false)
	f.Fuzz(func(t *testing.T, stored []byte, raw int64, compressed bool) {
		dec, err := NewDecoder()
		if err != nil {
			t.Fatal(err)
		}
		defer dec.Close()
		fr := index.Frame{Stored: int64(len(stored)), Raw: raw}
		if compressed {
			fr.Codec = index.Zstd
		}
		if _, err := dec.Decode(&fr, stored); !errdefs.IsDataLoss(err) { // no digest is right
			t.Errorf("Decode gives %v", err)
		}
	})
}

// FuzzEncode says that whatever is encoded comes back.
func FuzzEncode(f *testing.F) {
	f.Add([]byte("pages"), uint8(3))
	f.Fuzz(func(t *testing.T, seed []byte, n uint8) {
		raw := bytes.Repeat(append(seed, 0), page*(1+int(n))/(len(seed)+1)+1)
		raw = raw[:min(len(raw)/page*page, index.MaxFrame)]
		enc, _ := NewEncoder(Twentieth)
		defer enc.Close()
		dec, _ := NewDecoder()
		defer dec.Close()
		codec, stored := enc.Encode(nil, raw)
		fr := index.Frame{Codec: codec, Stored: int64(len(stored)), Raw: int64(len(raw)), Digest: sha256.Sum256(raw), Check: xxhash.Sum64(raw)}
		if got, err := dec.Decode(&fr, stored); err != nil || !bytes.Equal(got, raw) {
			t.Errorf("%d bytes with %s: %v", len(raw), codec, err)
		}
	})
}
