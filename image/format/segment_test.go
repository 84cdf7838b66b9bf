package format

import (
	"bytes"
	"crypto/sha256"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"
	"github.com/containerd/errdefs"
	"github.com/klauspost/compress/zstd"
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
	enc, err := NewEncoder(CompressByTwentieth)
	if err != nil {
		t.Fatal(err)
	}
	defer enc.Close()
	plain, err := NewEncoder(NeverCompress)
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
	for _, n := range []int{page, 3 * page, 100 * page, MaxFrame} {
		for _, random := range []bool{true, false} {
			raw := sample(r, n, random)
			codec, stored := enc.Encode(nil, raw)
			if want := map[bool]Codec{true: Raw, false: Zstd}[random]; codec != want {
				t.Errorf("%d bytes, random %v: codec %s", n, random, codec)
			}
			f := Frame{Codec: codec, Stored: int64(len(stored)), Raw: int64(n), Digest: sha256.Sum256(raw), Check: xxhash.Sum64(raw)}
			if got, err := dec.Decode(&f, stored); err != nil || !bytes.Equal(got, raw) {
				t.Errorf("%d bytes, random %v: %v", n, random, err)
			}
			if codec, stored := plain.Encode(nil, raw); codec != Raw || &stored[0] != &raw[0] {
				t.Errorf("%d bytes are not stored as they are", n)
			}
		}
	}
}

func TestSegmentDecodeRefuses(t *testing.T) {
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
	frame := func(change func(f *Frame)) Frame {
		f := Frame{Segment: 3, Offset: 77, Codec: Zstd, Stored: int64(len(stored)), Raw: int64(len(raw)), Digest: sha256.Sum256(raw), Check: xxhash.Sum64(raw)}
		change(&f)
		return f
	}
	tests := []struct {
		name   string
		f      Frame
		stored []byte
	}{
		{"digest", frame(func(f *Frame) { f.Digest[5] ^= 1 }), stored},
		{"check", frame(func(f *Frame) { f.Check ^= 1 << 63 }), stored},
		{"codec", frame(func(f *Frame) { f.Codec = 7 }), stored},
		{"not zstd", frame(func(f *Frame) { f.Stored = 4 }), []byte("text")},
		{"length", frame(func(f *Frame) { f.Stored++ }), stored},
		{"shorter", frame(func(f *Frame) { f.Raw -= page }), stored},
		{"longer", frame(func(f *Frame) { f.Raw += page }), stored},
		{"too long", frame(func(f *Frame) { f.Raw = 1 << 40 }), stored},
		{"raw", frame(func(f *Frame) { f.Codec = Raw }), stored},
		{"bomb", frame(func(f *Frame) { f.Stored = int64(len(bomb)) }), bomb},
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

func TestCheckSize(t *testing.T) {
	for _, size := range []int64{0, -1, 1 << 19, 3 << 20, 16 << 30} {
		if err := CheckSegmentSize(size); !errdefs.IsInvalidArgument(err) {
			t.Errorf("size %d gives %v", size, err)
		}
	}
	for _, size := range []int64{MinSegmentSize, DefaultSegmentSize, MaxSegmentSize} {
		if err := CheckSegmentSize(size); err != nil {
			t.Error(err)
		}
	}
}

// TestKeep: pages of zeros are left out of a frame, and those behind them move up.
func TestKeep(t *testing.T) {
	file := make([]byte, 10*page)
	for _, i := range []int{1, 2, 4, 7, 8} {
		file[i*page+i] = byte(i)
	}
	var f Frame
	buf := make([]byte, MaxFrame)
	for _, r := range []Run{{File: 9, Addr: 0x10000, First: 0, Count: 5}, {File: 9, Addr: 0x20000, First: 5, Count: 5}} {
		pages := buf[f.Raw:][:copy(buf[f.Raw:], file[r.First*page:(r.First+r.Count)*page])]
		KeepPages(&f, r, page, pages)
	}
	raw := buf[:f.Raw]
	SumFrame(&f, raw)
	want := []Run{{File: 9, First: 1, Count: 2, Addr: 0x11000}, {File: 9, First: 4, Count: 1, Addr: 0x14000}, {File: 9, First: 7, Count: 2, Addr: 0x22000}}
	if !reflect.DeepEqual(f.Runs, want) || f.Raw != 5*page || f.Digest != sha256.Sum256(raw) || f.Check != xxhash.Sum64(raw) {
		t.Errorf("got %+v", f)
	}
	for i, n := range []int{1, 2, 4, 7, 8} {
		if !bytes.Equal(raw[i*page:(i+1)*page], file[n*page:(n+1)*page]) {
			t.Errorf("page %d is not page %d of the file", i, n)
		}
	}
}

func FuzzSegmentDecode(f *testing.F) {
	enc, _ := NewEncoder(CompressByTwentieth)
	_, stored := enc.Encode(nil, sample(rand.New(rand.NewPCG(1, 1)), 4*page, false))
	f.Add(stored, int64(4*page), true)
	f.Add(make([]byte, page), int64(page), false)
	f.Fuzz(func(t *testing.T, stored []byte, raw int64, compressed bool) {
		dec, err := NewDecoder()
		if err != nil {
			t.Fatal(err)
		}
		defer dec.Close()
		fr := Frame{Stored: int64(len(stored)), Raw: raw}
		if compressed {
			fr.Codec = Zstd
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
		raw = raw[:min(len(raw)/page*page, MaxFrame)]
		enc, _ := NewEncoder(CompressByTwentieth)
		defer enc.Close()
		dec, _ := NewDecoder()
		defer dec.Close()
		codec, stored := enc.Encode(nil, raw)
		fr := Frame{Codec: codec, Stored: int64(len(stored)), Raw: int64(len(raw)), Digest: sha256.Sum256(raw), Check: xxhash.Sum64(raw)}
		if got, err := dec.Decode(&fr, stored); err != nil || !bytes.Equal(got, raw) {
			t.Errorf("%d bytes with %s: %v", len(raw), codec, err)
		}
	})
}
