package image

import (
	"cmp"
	"context"
	"io"
	"runtime"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/cryo-project/cryo/image/direct"
	"github.com/cryo-project/cryo/image/index"
	"github.com/cryo-project/cryo/image/segment"
)

// segmentReader reads frames and hands each, verified, to sink; from several goroutines, in no order.
type segmentReader struct {
	src     Fetcher
	workers int  // 0: as many as there are cores
	whole   bool // verify the digest of every segment, also where its frames' digests cover all its bytes
	shared  int  // see [Snapshot.shared]
	sink    func(f *index.Frame, raw []byte) error
}

// storedFrame is a frame on its way from its segment to a decoder.
type storedFrame struct {
	frame *index.Frame
	buf   []byte        // of index.MaxFrame; the frame is at its begin
	kept  *segment.Kept // the same, out of a store that need not be hashed again; nil: from elsewhere
}

func (r *segmentReader) read(ctx context.Context, segments []ocispec.Descriptor, frames []index.Frame) error {
	workers := r.workers
	if workers <= 0 {
		workers = runtime.GOMAXPROCS(0)
	}
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
				if err := r.decode(ctx, dec, job); err != nil {
					return err
				}
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
			if n == 0 && !r.whole {
				continue
			}
			reads.Go(func() error { return r.segment(readsCtx, d, i >= r.shared, own, jobs, free) })
		}
		return cmp.Or(reads.Wait(), ctx.Err())
	})
	return g.Wait()
}

// segment reads the frames of one segment, which is the snapshot's own or not. What is in none of them is read only where everything
// shall be verified.
func (r *segmentReader) segment(ctx context.Context, d ocispec.Descriptor, own bool, frames []index.Frame, jobs chan<- storedFrame, free chan []byte) error {
	blob, err := openBlob(ctx, r.src, d.Annotations[ocispec.AnnotationTitle], d)
	if err != nil {
		return err
	}
	defer blob.Close()
	if v, ok := blob.rc.(segment.Verified); ok && own && !r.whole {
		return r.kept(ctx, v, blob, frames, jobs, free)
	}
	var end int64
	tiled := true
	for i := range frames {
		tiled = tiled && frames[i].Offset == end
		end = frames[i].Offset + frames[i].Stored
	}
	tiled = tiled && end == d.Size
	if !r.whole && (!tiled || allRaw(frames)) {
		// Each byte that is used is covered by the digest of a frame.
		blob.hash = nil
	}
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
	if !r.whole && !tiled {
		return nil
	}
	return blob.finish()
}

// kept reads the frames of a segment out of a store that keeps what was verified.
func (r *segmentReader) kept(ctx context.Context, v segment.Verified, blob *blobReader, frames []index.Frame, jobs chan<- storedFrame, free chan []byte) error {
	for i := range frames {
		job := storedFrame{frame: &frames[i]}
		select {
		case job.buf = <-free:
		case <-ctx.Done():
			return ctx.Err()
		}
		kept, err := v.Frame(job.frame, job.buf)
		if err == io.EOF {
			err = blob.damaged(errShort)
		}
		if err != nil {
			return err
		}
		job.kept = &kept
		select {
		case jobs <- job:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (r *segmentReader) decode(ctx context.Context, dec *segment.Decoder, job storedFrame) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	var raw []byte
	var err error
	if job.kept != nil {
		raw, err = dec.DecodeKept(job.frame, *job.kept)
	} else {
		raw, err = dec.Decode(job.frame, job.buf[:job.frame.Stored])
	}
	if err != nil {
		return err
	}
	return r.sink(job.frame, raw)
}

func allRaw(frames []index.Frame) bool {
	for i := range frames {
		if frames[i].Codec != index.Raw {
			return false
		}
	}
	return true
}
