package image

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image/index"
)

// Decoded is a source that has a snapshot's memory as [Decode] has written it. It is not asked for segments, and what it has in
// their place is not verified again.
type Decoded interface {
	Fetcher
	// Memory opens what Decode has written. The caller closes it.
	Memory(ctx context.Context) (*os.File, error)
}

// Decode is [Verify], and writes the memory to w: the decoded bytes of all frames, one after the other in the order of the index.
// What was written counts only if there was no error.
func Decode(ctx context.Context, src Fetcher, d ocispec.Descriptor, w io.WriterAt, p Progress) error {
	return full(verify(ctx, src, d, p, func(x *index.Index) frameSink {
		at := make(map[*index.Frame]int64, len(x.Frames))
		for i, off := range offsets(x) {
			at[&x.Frames[i]] = off
		}
		return func(f *index.Frame, raw []byte) error {
			if _, err := w.WriteAt(raw, at[f]); err != nil {
				return fmt.Errorf("write memory: %w", err)
			}
			return nil
		}
	}))
}

// offsets says where Decode writes each frame.
func offsets(x *index.Index) []int64 {
	all := make([]int64, len(x.Frames))
	var at int64
	for i := range x.Frames {
		all[i] = at
		at += x.Frames[i].Raw
	}
	return all
}

// decodedMemory is what Decode has written.
type decodedMemory struct {
	file *os.File
	at   []int64 // of each frame
}

func openDecoded(ctx context.Context, src Decoded, x *index.Index) (*decodedMemory, error) {
	f, err := src.Memory(ctx)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && info.Size() != x.RawBytes() {
		err = fmt.Errorf("read decoded memory: it has %d bytes, not %d: %w", info.Size(), x.RawBytes(), errdefs.ErrDataLoss)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return &decodedMemory{file: f, at: offsets(x)}, nil
}

// read fills buf with the bytes of a frame.
func (d *decodedMemory) read(buf []byte, frame int32) ([]byte, error) {
	if _, err := d.file.ReadAt(buf, d.at[frame]); err != nil {
		return nil, fmt.Errorf("read decoded memory: %w", err)
	}
	return buf, nil
}
