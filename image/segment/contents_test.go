package segment

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/cespare/xxhash/v2"

	"github.com/cryo-project/cryo/image/index"
)

// contents are frames as memory has them, and how each policy stores them.
var contents = []struct {
	name               string
	make               func(r *rand.Rand) []byte
	twentieth, quarter index.Codec
}{
	{"random", values(word), index.Raw, index.Raw},
	{"bf16 weights", values(bf16), index.Raw, index.Raw},
	{"fp32 weights", values(fp32), index.Raw, index.Raw},
	{"int8 weights", values(func(r *rand.Rand, b []byte) []byte { return append(b, byte(int8(r.NormFloat64()*30))) }), index.Raw, index.Raw},
	{"bf16 after a ReLU", values(relu), index.Zstd, index.Raw},
	{"int64 of bf16", values(widened), index.Zstd, index.Raw},
	{"tokens", values(func(r *rand.Rand, b []byte) []byte { return binary.LittleEndian.AppendUint64(b, r.Uint64N(128256)) }), index.Zstd, index.Raw},
	{"text", values(text), index.Zstd, index.Raw},
	{"random and zeros", every(2, word), index.Zstd, index.Raw},
	{"some values in zeros", every(20, word), index.Zstd, index.Zstd},
	{"ones", values(func(_ *rand.Rand, b []byte) []byte { return append(b, 0x80, 0x3f) }), index.Zstd, index.Zstd},
	{"a row again and again", func(r *rand.Rand) []byte { return bytes.Repeat(values(word)(r)[:4096], 256) }, index.Zstd, index.Zstd},
	{"a long row again and again", func(r *rand.Rand) []byte { return bytes.Repeat(values(word)(r)[:128<<10], 8) }, index.Zstd, index.Raw},
	{"what a sample does not see", func(r *rand.Rand) []byte { // zeros in all slices
		b := values(word)(r)
		for n := range sampleSlices {
			at := n * (len(b) - sampleSlice) / (sampleSlices - 1)
			clear(b[at : at+sampleSlice])
		}
		return b
	}, index.Zstd, index.Raw},
	{"a short frame of zeros", func(*rand.Rand) []byte { return make([]byte, page) }, index.Zstd, index.Zstd},
	{"a short frame", func(r *rand.Rand) []byte { return values(word)(r)[:page] }, index.Raw, index.Raw},
}

// values gives what makes a frame of them.
func values(next func(*rand.Rand, []byte) []byte) func(*rand.Rand) []byte {
	return func(r *rand.Rand) []byte {
		b := make([]byte, 0, index.MaxFrame+128)
		for len(b) < index.MaxFrame {
			b = next(r, b)
		}
		return b[:index.MaxFrame]
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
	for _, p := range []Policy{Never, Twentieth, Quarter} {
		var encoders [2]*Encoder
		for i := range encoders {
			if encoders[i], err = NewEncoder(p); err != nil {
				t.Fatal(err)
			}
			defer encoders[i].Close()
		}
		for _, c := range contents {
			raw := c.make(rand.New(rand.NewPCG(1, 1)))
			want := []index.Codec{Never: index.Raw, Twentieth: c.twentieth, Quarter: c.quarter}[p]
			codec, stored := encoders[0].Encode(nil, raw)
			if codec != want {
				t.Errorf("policy %d stores %s as %s", p, c.name, codec)
			}
			// The other one has just had other bytes.
			encoders[1].Encode(nil, contents[int(p)].make(rand.New(rand.NewPCG(2, 2))))
			if again, other := encoders[1].Encode(make([]byte, 100), raw); again != codec || !bytes.Equal(other, stored) {
				t.Errorf("policy %d gives two frames of %s", p, c.name)
			}
			f := index.Frame{Codec: codec, Stored: int64(len(stored)), Raw: int64(len(raw)), Check: xxhash.Sum64(raw)}
			if got, err := dec.DecodeKept(&f, Kept{stored}); err != nil || !bytes.Equal(got, raw) {
				t.Errorf("policy %d: %s: %v", p, c.name, err)
			}
		}
	}
}

var policyNames = []string{Twentieth: "twentieth", Quarter: "quarter"}

func BenchmarkEncode(b *testing.B) {
	for _, p := range []Policy{Twentieth, Quarter} {
		for _, c := range contents {
			b.Run(fmt.Sprintf("%s/%s", policyNames[p], c.name), func(b *testing.B) {
				enc, err := NewEncoder(p)
				if err != nil {
					b.Fatal(err)
				}
				defer enc.Close()
				raw, dst, n := c.make(rand.New(rand.NewPCG(1, 1))), make([]byte, 0, 2*index.MaxFrame), 0
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
	for _, p := range []Policy{Twentieth, Quarter} {
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
				f := index.Frame{Codec: codec, Stored: int64(len(stored)), Raw: int64(len(raw)), Check: xxhash.Sum64(raw)}
				b.SetBytes(int64(len(raw)))
				for b.Loop() {
					if _, err := dec.DecodeKept(&f, Kept{stored}); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
