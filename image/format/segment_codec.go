package format

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"

	"github.com/cespare/xxhash/v2"
	"github.com/containerd/errdefs"
	"github.com/klauspost/compress/zstd"

	"github.com/cryo-project/cryo/image/failure"
)

// Compression says which frames an [Encoder] compresses.
type Compression uint8

// The policies.
const (
	// NeverCompress stores everything as it is.
	NeverCompress Compression = iota
	// CompressByTwentieth compresses what becomes a 20th shorter.
	CompressByTwentieth
	// CompressByQuarter compresses what becomes a quarter or less, if a sample does. Bytes whose values have to be decoded, one by one, are stored
	// as they are, which is much quicker to write and to read; what repeats itself is compressed.
	CompressByQuarter
)

// A sample of a frame are so many slices of so many bytes, from its begin to its end, evenly.
const (
	sampleSlices = 4
	sampleSlice  = 16 << 10
)

// Encoder encodes frames. It is for one goroutine; the same bytes give the same frame with every encoder of a version and policy.
type Encoder struct {
	policy Compression
	zstd   *zstd.Encoder // nil: everything is stored raw
	sample []byte
}

// NewEncoder returns an encoder that compresses what the policy says.
func NewEncoder(p Compression) (*Encoder, error) {
	if p == NeverCompress {
		return &Encoder{}, nil
	}
	// One goroutine, the fastest level: the output depends on nothing but the input. No checksum: the index has one.
	z, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1),
		zstd.WithWindowSize(MaxFrame), zstd.WithEncoderCRC(false), zstd.WithSingleSegment(true))
	if err != nil {
		return nil, fmt.Errorf("make zstd encoder: %w", err)
	}
	return &Encoder{policy: p, zstd: z}, nil
}

// Encode stores raw, of [MaxFrame] bytes at most: it appends to dst[:0] what it compressed to, or returns raw itself
// where the policy wants that.
func (e *Encoder) Encode(dst, raw []byte) (Codec, []byte) {
	if e.zstd == nil {
		return Raw, raw
	}
	if e.policy == CompressByQuarter && len(raw) > sampleSlices*sampleSlice {
		e.sample = appendSample(e.sample[:0], raw)
		if dst = e.zstd.EncodeAll(e.sample, dst[:0]); !e.pays(len(dst), len(e.sample)) {
			return Raw, raw
		}
	}
	if dst = e.zstd.EncodeAll(raw, dst[:0]); !e.pays(len(dst), len(raw)) {
		return Raw, raw
	}
	return Zstd, dst
}

// pays reports whether it is worth it to compress raw bytes to so many.
func (e *Encoder) pays(compressed, raw int) bool {
	if e.policy == CompressByQuarter {
		return compressed <= raw/4
	}
	return compressed <= raw-raw/20
}

// appendSample appends the sample of a frame that is longer.
func appendSample(b, raw []byte) []byte {
	for n := range sampleSlices {
		at := n * (len(raw) - sampleSlice) / (sampleSlices - 1)
		b = append(b, raw[at:at+sampleSlice]...)
	}
	return b
}

// Close gives back what the encoder holds.
func (e *Encoder) Close() {
	if e.zstd != nil {
		e.zstd.Close()
	}
}

// Decoder decodes frames. It is for one goroutine.
type Decoder struct {
	zstd *zstd.Decoder
	buf  []byte
}

// NewDecoder returns a decoder; it never uses more than a few MiB, whatever a frame claims.
func NewDecoder() (*Decoder, error) {
	z, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxMemory(MaxFrame), zstd.WithDecodeAllCapLimit(true))
	if err != nil {
		return nil, fmt.Errorf("make zstd decoder: %w", err)
	}
	return &Decoder{zstd: z, buf: make([]byte, 0, MaxFrame)}, nil
}

// Decode returns the pages of a frame from its stored bytes and verifies them. The result is valid until the next call and while
// stored is. What does not verify gives an error of kind DataLoss.
func (d *Decoder) Decode(f *Frame, stored []byte) ([]byte, error) {
	raw, err := d.decode(f, stored)
	if err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(raw); subtle.ConstantTimeCompare(sum[:], f.Digest[:]) != 1 {
		return nil, frameError(f, "has digest %x instead of %x", sum, f.Digest)
	}
	return raw, checkFrame(f, raw)
}

// DecodeKept is Decode for bytes out of a store that only root can write: it verifies no more than that disk and memory have kept them.
func (d *Decoder) DecodeKept(f *Frame, stored StoredFrame) ([]byte, error) {
	raw, err := d.decode(f, stored.b)
	if err != nil {
		return nil, err
	}
	return raw, checkFrame(f, raw)
}

func checkFrame(f *Frame, raw []byte) error {
	if sum := xxhash.Sum64(raw); sum != f.Check {
		return frameError(f, "has check %016x instead of %016x", sum, f.Check)
	}
	return nil
}

func (d *Decoder) decode(f *Frame, stored []byte) ([]byte, error) {
	if int64(len(stored)) != f.Stored || f.Raw < 0 || f.Raw > MaxFrame {
		return nil, frameError(f, "has %d bytes stored instead of %d", len(stored), f.Stored)
	}
	raw := stored
	switch f.Codec {
	case Raw:
	case Zstd:
		var err error
		// The capacity bounds what is decoded.
		if raw, err = d.zstd.DecodeAll(stored, d.buf[:0:f.Raw]); err != nil {
			return nil, frameError(f, "does not decompress: %v", err)
		}
	default:
		return nil, frameError(f, "has an unknown codec")
	}
	if int64(len(raw)) != f.Raw {
		return nil, frameError(f, "holds %d bytes instead of %d", len(raw), f.Raw)
	}
	return raw, nil
}

// Close gives back what the decoder holds.
func (d *Decoder) Close() { d.zstd.Close() }

// frameError returns the error that a frame does not verify.
func frameError(f *Frame, format string, args ...any) error {
	return failure.New(errdefs.ErrDataLoss, "the snapshot's memory is damaged; repair it with cryo pull --repair, or take a new one",
		"decode frame at %d of segment %d: it %s", f.Offset, f.Segment, fmt.Sprintf(format, args...))
}
