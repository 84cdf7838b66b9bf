package image

import (
	"cmp"
	"context"
	"fmt"

	"github.com/cryo-project/cryo/image/format"
)

// frameJob is one piece on its way into its segment.
type frameJob struct {
	number uint64        // address divided by [format.MaxFrame]
	dumped int64         // pages, those of zeros included
	slot   []byte        // of [format.MaxFrame] bytes; holds what is stored, in the end
	home   *slots        // where the slot goes then
	kept   int64         // without a slot: where in the spill the pages are
	aside  chan struct{} // closed when slot, home and kept are settled; nil: they are
	frame  format.Frame
	stored []byte // nil: no page is left, or the parent has the frame
	parent int    // 1 and the number of the parent's frame; 0: none
	err    error
	done   chan struct{}
}

// segmentWriter writes one segment, frame by frame. Nothing is stored before there is a frame.
type segmentWriter struct {
	dst  BlobStore
	blob BlobWriter // nil: no frame yet
	out  packedSegment
}

func (w *segmentWriter) add(ctx context.Context, f format.Frame, stored []byte) (err error) {
	if w.blob == nil {
		if w.blob, err = w.dst.Create(ctx); err != nil {
			return err
		}
	}
	if _, err := w.blob.Write(stored); err != nil {
		return err
	}
	f.Offset = w.out.desc.Size
	w.out.desc.Size += f.Stored
	w.out.raw += f.Raw
	w.out.frames = append(w.out.frames, f)
	return nil
}

// end commits the segment, or drops it where err or ctx says that it is not whole.
func (w *segmentWriter) end(ctx context.Context, err error) (packedSegment, error) {
	if w.blob != nil {
		defer w.blob.Close()
	}
	if err = cmp.Or(err, ctx.Err()); err != nil {
		return packedSegment{}, fmt.Errorf("write segment: %w", err)
	}
	if w.blob == nil {
		return w.out, nil
	}
	d, err := w.blob.Commit(ctx, MediaTypeSegment)
	if err != nil {
		return packedSegment{}, fmt.Errorf("write segment: %w", err)
	}
	w.out.desc = d
	return w.out, nil
}
