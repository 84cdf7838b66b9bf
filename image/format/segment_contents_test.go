package format

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/cespare/xxhash/v2"
)

// contents are frames as memory has them, and how each policy stores them.
var contents = []struct {
	name               string
	make               func(r *rand.Rand) []byte
	twentieth, quarter Codec
}{
	{"random", values(word), Raw, Raw},
	{"bf16 weights", values(bf16), Raw, Raw},
	{"fp32 weights", values(fp32), Raw, Raw},
	{"int8 weights", values(func(r *rand.Rand, b []byte) []byte { return append(b, byte(int8(r.NormFloat64()*30))) }), Raw, Raw},
	{"bf16 after a ReLU", values(relu), Zstd, Raw},
	{"int64 of bf16", values(widened), Zstd, Raw},
	{"tokens", values(func(r *rand.Rand, b []byte) []byte { return binary.LittleEndian.AppendUint64(b, r.Uint64N(128256)) }), Zstd, Raw},
	{"text", values(text), Zstd, Raw},
	{"random and zeros", every(2, word), Zstd, Raw},
	{"some values in zeros", every(20, word), Zstd, Zstd},
	{"ones", values(func(_ *rand.Rand, b []byte) []byte { return append(b, 0x80, 0x3f) }), Zstd, Zstd},
	{"a row again and again", func(r *rand.Rand) []byte { return bytes.Repeat(values(word)(r)[:4096], 256) }, Zstd, Zstd},
	{"a long row again and again", func(r *rand.Rand) []byte { return bytes.Repeat(values(word)(r)[:128<<10], 8) }, Zstd, Raw},
	{"what a sample does not see", func(r *rand.Rand) []byte { // zeros in all slices
		b := values(word)(r)
		for n := range sampleSlices {
			at := n * (len(b) - sampleSlice) / (sampleSlices - 1)
			clear(b[at : at+sampleSlice])
		}
		return b
	}, Zstd, Raw},
	{"a short frame of zeros", func(*rand.Rand) []byte { return make([]byte, page) }, Zstd, Zstd},
	{"a short frame", func(r *rand.Rand) []byte { return values(word)(r)[:page] }, Raw, Raw},
}

// values gives what makes a frame of them.
func values(next func(*rand.Rand, []byte) []byte) func(*rand.Rand) []byte {
	return func(r *rand.Rand) []byte {
		b := make([]byte, 0, MaxFrame+128)
		for len(b) < MaxFrame {
			b = next(r, b)
		}
		return b[:MaxFrame]
	}
}

// every gives a frame of zeros, of which one word in n, somewhere, has a value.
func every(n int, next func(*rand.Rand, []byte) []byte) func(*rand.Rand) []byte {
	return values(func(r *rand.Rand, b []byte) []byte {
		if r.IntN(n) > 0 {
			return append(b, make([]byte, 8)...)
		}
		return next(r, b)
	})
}

func word(r *rand.Rand, b []byte) []byte { return binary.LittleEndian.AppendUint64(b, r.Uint64()) }

func bits(v float64) uint32 { return math.Float32bits(float32(v)) }

func bf16(r *rand.Rand, b []byte) []byte {
	return binary.LittleEndian.AppendUint16(b, uint16(bits(r.NormFloat64()*0.02)>>16))
}

func fp32(r *rand.Rand, b []byte) []byte {
	return binary.LittleEndian.AppendUint32(b, bits(r.NormFloat64()*0.02))
}

func relu(r *rand.Rand, b []byte) []byte {
	return binary.LittleEndian.AppendUint16(b, uint16(bits(max(0, r.NormFloat64()))>>16))
}

// widened is what a sum over the bits of weights leaves behind.
func widened(r *rand.Rand, b []byte) []byte {
	return binary.LittleEndian.AppendUint64(b, uint64(int16(bits(r.NormFloat64()*0.02)>>16)))
}

func text(r *rand.Rand, b []byte) []byte {
	return fmt.Appendf(b, "at %d the %s of %x was %d. ", r.Uint32(), []string{"load", "length", "price", "answer"}[r.IntN(4)], r.Uint32N(1000), r.IntN(100))
}

// TestPolicies: each policy compresses what it is to, the same way each time.
func TestPolicies(t *testing.T) {
	dec, err := NewDecoder()
	if err != nil {
		t.Fatal(err)
	}
	defer dec.Close()
	for _, p := range []Compression{NeverCompress, CompressByTwentieth, CompressByQuarter} {
		var encoders [2]*Encoder
		for i := range encoders {
			if encoders[i], err = NewEncoder(p); err != nil {
				t.Fatal(err)
			}
			defer encoders[i].Close()
		}
		for _, c := range contents {
			raw := c.make(rand.New(rand.NewPCG(1, 1)))
			want := []Codec{NeverCompress: Raw, CompressByTwentieth: c.twentieth, CompressByQuarter: c.quarter}[p]
			codec, stored := encoders[0].Encode(nil, raw)
			if codec != want {
				t.Errorf("policy %d stores %s as %s", p, c.name, codec)
			}
			// The other one has just had other bytes.
			encoders[1].Encode(nil, contents[int(p)].make(rand.New(rand.NewPCG(2, 2))))
			if again, other := encoders[1].Encode(make([]byte, 100), raw); again != codec || !bytes.Equal(other, stored) {
				t.Errorf("policy %d gives two frames of %s", p, c.name)
			}
			f := Frame{Codec: codec, Stored: int64(len(stored)), Raw: int64(len(raw)), Check: xxhash.Sum64(raw)}
			if got, err := dec.DecodeKept(&f, StoredFrame{stored}); err != nil || !bytes.Equal(got, raw) {
				t.Errorf("policy %d: %s: %v", p, c.name, err)
			}
		}
	}
}

var policyNames = []string{CompressByTwentieth: "twentieth", CompressByQuarter: "quarter"}

func BenchmarkEncode(b *testing.B) {
	for _, p := range []Compression{CompressByTwentieth, CompressByQuarter} {
		for _, c := range contents {
			b.Run(fmt.Sprintf("%s/%s", policyNames[p], c.name), func(b *testing.B) {
				enc, err := NewEncoder(p)
				if err != nil {
					b.Fatal(err)
				}
				defer enc.Close()
				raw, dst, n := c.make(rand.New(rand.NewPCG(1, 1))), make([]byte, 0, 2*MaxFrame), 0
				b.SetBytes(int64(len(raw)))
				for b.Loop() {
					_, stored := enc.Encode(dst, raw)
					n = len(stored)
				}
				b.ReportMetric(float64(n)/float64(len(raw)), "stored/raw")
			})
		}
	}
}

// BenchmarkDecodeKept reads frames out of a store that need not be hashed.
func BenchmarkDecodeKept(b *testing.B) {
	for _, p := range []Compression{CompressByTwentieth, CompressByQuarter} {
		for _, c := range contents {
			b.Run(fmt.Sprintf("%s/%s", policyNames[p], c.name), func(b *testing.B) {
				enc, err := NewEncoder(p)
				if err != nil {
					b.Fatal(err)
				}
				defer enc.Close()
				dec, err := NewDecoder()
				if err != nil {
					b.Fatal(err)
				}
				defer dec.Close()
				raw := c.make(rand.New(rand.NewPCG(1, 1)))
				codec, stored := enc.Encode(nil, raw)
				f := Frame{Codec: codec, Stored: int64(len(stored)), Raw: int64(len(raw)), Check: xxhash.Sum64(raw)}
				b.SetBytes(int64(len(raw)))
				for b.Loop() {
					if _, err := dec.DecodeKept(&f, StoredFrame{stored}); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
