package image

import (
	"cmp"
	"context"
	"runtime"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/cryo-project/cryo/image/direct"
	"github.com/cryo-project/cryo/image/index"
	"github.com/cryo-project/cryo/image/segment"
)

// segmentReader reads all of segments, verifies them and each frame in them, and tells sink of each frame; from several goroutines, in no order.
type segmentReader struct {
	src  Fetcher
	sink func(f *index.Frame)
}

// storedFrame is a frame on its way from its segment to a decoder.
type storedFrame struct {
	frame *index.Frame
	buf   []byte // of index.MaxFrame; the frame is at its begin
}

func (r *segmentReader) read(ctx context.Context, segments []ocispec.Descriptor, frames []index.Frame) error {
	workers := runtime.GOMAXPROCS(0)
	jobs, free := make(chan storedFrame, workers), make(chan []byte, 2*workers+2)
	for range cap(free) {
		buf := direct.Lend()
		defer direct.Return(buf)
		free <- buf
	}
	g, ctx := errgroup.WithContext(ctx)
	for range workers {
		g.Go(func() error {
			dec, err := segment.NewDecoder()
			if err != nil {
				return err
			}
			defer dec.Close()
			for job := range jobs {
				if err := ctx.Err(); err != nil {
					return err
				}
				if _, err := dec.Decode(job.frame, job.buf[:job.frame.Stored]); err != nil {
					return err
				}
				r.sink(job.frame)
				free <- job.buf
			}
			return nil
		})
	}
	g.Go(func() error {
		defer close(jobs)
		reads, readsCtx := errgroup.WithContext(ctx)
		reads.SetLimit(workers)
		for i, d := range segments {
			n := 0
			for n < len(frames) && frames[n].Segment == i {
				n++
			}
			own := frames[:n]
			frames = frames[n:]
			if readsCtx.Err() != nil {
				break
			}
			reads.Go(func() error { return r.segment(readsCtx, d, own, jobs, free) })
		}
		return cmp.Or(reads.Wait(), ctx.Err())
	})
	return g.Wait()
}

// segment reads one segment with its frames.
func (r *segmentReader) segment(ctx context.Context, d ocispec.Descriptor, frames []index.Frame, jobs chan<- storedFrame, free chan []byte) error {
	blob, err := openBlob(ctx, r.src, d.Annotations[ocispec.AnnotationTitle], d)
	if err != nil {
		return err
	}
	defer blob.Close()
	for i := range frames {
		var buf []byte
		select {
		case buf = <-free:
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := blob.readAt(buf[:frames[i].Stored], frames[i].Offset); err != nil {
			return err
		}
		select {
		case jobs <- storedFrame{frame: &frames[i], buf: buf}:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return blob.finish()
}
