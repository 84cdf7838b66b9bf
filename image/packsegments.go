package image

import (
	"cmp"
	"context"
	"encoding/hex"
	"path/filepath"
	"slices"
	"sync/atomic"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/cryo-project/cryo/image/direct"
	"github.com/cryo-project/cryo/image/index"
	"github.com/cryo-project/cryo/image/pages"
	"github.com/cryo-project/cryo/image/segment"
)

// packedSegment is a segment that is stored; the frames' segment number is not filled in yet.
type packedSegment struct {
	desc   ocispec.Descriptor
	raw    int64
	frames []index.Frame
	// parents says that it is the parent's.
	parents bool
}

// segmentPacker loads, hashes and compresses pieces with a fixed number of workers and slots, whatever the number of segments.
// Each segment has one goroutine that queues its pieces in order, and one that writes the frames in that order; a slot is
// taken when a piece is queued and is free when its frame is written. So no segment can wait for one that waits for it.
type segmentPacker struct {
	dst      BlobStore
	files    *pagesFiles
	pageSize int64
	jobs     chan *frameJob
	free     chan []byte // slots
	progress Progress
	done     atomic.Int64
	total    int64
}

// packSegments gives a segment for each element of cut; those without bytes, where all pages are zero, are not stored.
func packSegments(ctx context.Context, dst BlobStore, dir string, cut [][]segment.Piece, maps []*pages.Pagemap, pageSize int64, o PackOptions) ([]packedSegment, error) {
	p := &segmentPacker{dst: dst, pageSize: pageSize, progress: o.Progress, jobs: make(chan *frameJob), free: make(chan []byte, 2*o.Workers+2)}
	for range cap(p.free) {
		slot := direct.Lend()
		defer direct.Return(slot)
		p.free <- slot
	}
	uses := make(map[uint64]int)
	for _, pieces := range cut {
		for _, piece := range pieces {
			uses[piece.File]++
		}
	}
	for _, m := range maps {
		p.total += m.Count * pageSize
	}
	p.files = newPagesFiles(func(id uint64) string { return filepath.Join(dir, pages.FileName(id)) }, false, uses)
	defer p.files.close()

	out := make([]packedSegment, len(cut))
	g, ctx := errgroup.WithContext(ctx)
	for range o.Workers {
		g.Go(func() error { return p.work(ctx, o.policy(segment.Twentieth)) })
	}
	g.Go(func() error {
		defer close(p.jobs)
		segments, segmentsCtx := errgroup.WithContext(ctx)
		segments.SetLimit(o.Workers)
		for i, pieces := range cut {
			if segmentsCtx.Err() != nil {
				break
			}
			segments.Go(func() (err error) {
				out[i], err = p.segment(segmentsCtx, pieces)
				return err
			})
		}
		return cmp.Or(segments.Wait(), ctx.Err())
	})
	return out, g.Wait()
}

// work loads and encodes what is queued until the queue is closed.
func (p *segmentPacker) work(ctx context.Context, policy segment.Policy) error {
	enc, err := newFrameEncoder(policy)
	if err != nil {
		return err
	}
	defer enc.close()
	for job := range p.jobs {
		if job.err = ctx.Err(); job.err == nil {
			job.err = p.encode(enc, job)
		}
		close(job.done)
	}
	return nil
}

func (p *segmentPacker) encode(enc *frameEncoder, job *frameJob) error {
	f, err := p.files.take(job.piece.File)
	if err != nil {
		return err
	}
	frame, raw, err := segment.Load(job.piece, f, p.pageSize, job.slot)
	p.files.put(job.piece.File)
	if err != nil {
		return err
	}
	enc.finish(job, frame, raw)
	if p.progress != nil {
		p.progress("pack", p.done.Add(job.piece.Pages()*p.pageSize), p.total)
	}
	return nil
}

// segment stores one segment. Nothing is stored where all its pages are zero.
func (p *segmentPacker) segment(ctx context.Context, pieces []segment.Piece) (packedSegment, error) {
	queue := make(chan *frameJob, cap(p.free))
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer close(queue)
		for _, piece := range pieces {
			job := &frameJob{piece: piece, done: make(chan struct{})}
			select {
			case job.slot = <-p.free:
			case <-ctx.Done():
				return ctx.Err()
			}
			select {
			case p.jobs <- job:
				queue <- job
			case <-ctx.Done():
				p.free <- job.slot
				return ctx.Err()
			}
		}
		return nil
	})
	var out packedSegment
	g.Go(func() (err error) {
		out, err = p.write(ctx, queue)
		return err
	})
	return out, g.Wait()
}

// write stores frames in the order of the queue. It always drains the queue: every slot must come back.
func (p *segmentPacker) write(ctx context.Context, queue <-chan *frameJob) (packedSegment, error) {
	w := segmentWriter{dst: p.dst}
	var err error
	for job := range queue {
		<-job.done
		err = cmp.Or(err, job.err)
		if err == nil && len(job.stored) > 0 {
			err = w.add(ctx, job.frame, job.stored)
		}
		p.free <- job.slot
	}
	return w.end(ctx, err)
}

// inherited counts the segments of the parent, which come first.
func inherited(packed []packedSegment) (n int) {
	for n < len(packed) && packed[n].parents {
		n++
	}
	return n
}

// newIndex numbers the segments, and names them in their descriptors.
func newIndex(packed []packedSegment, parts []memoryPart, pageSize int64) *index.Index {
	x := &index.Index{PageSize: pageSize}
	for n := range packed {
		s := &packed[n]
		s.desc.Annotations = map[string]string{ocispec.AnnotationTitle: titleSegment(n)}
		is := index.Segment{Size: s.desc.Size, Raw: s.raw}
		_, _ = hex.Decode(is.Digest[:], []byte(s.desc.Digest.Encoded())) // a store that lies is found out by Verify
		x.Segments = append(x.Segments, is)
		for i := range s.frames {
			s.frames[i].Segment = n
		}
		x.Frames = append(x.Frames, s.frames...)
	}
	for _, p := range parts {
		for _, m := range p.maps {
			f := index.File{ID: m.Pages, Pagemap: m.Name, Count: m.Count}
			if f.IsDevice() {
				f.Pagemap = ""
			}
			x.Files = append(x.Files, f)
		}
	}
	slices.SortFunc(x.Files, func(a, b index.File) int { return cmp.Compare(a.ID, b.ID) })
	return x
}
