package image

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/cryo-project/cryo/image/format"
)

// maxSmall is how many segments of less than a 16th of the segment size may be taken over from a parent, beyond as many as
// all memory would fill. So many increments share the price of packing such segments anew.
const maxSmall = 64

// unchangedFrame is a frame whose pages are in the parent.
type unchangedFrame struct {
	frame format.Frame // without segment, offset, stored length and codec
	at    int          // of the first frame of the parent that holds them
}

// copiedFrame is a frame whose stored bytes are taken out of a segment of the parent.
type copiedFrame struct {
	frame format.Frame // without segment and offset
	from  *format.Frame
}

// takeOver returns which segments of the parent a snapshot lists, and which frames have to be copied out of others: those of
// segments that would mostly be dead, of small ones where there are too many, and those that the parent has less often. The
// frames are in the order of memory. size is the segment size and full how many segments all memory would fill.
//
// At least half of what is listed is in use. A byte is copied for this reason only when another has died, so all copies
// together cost no more than the changes themselves.
func (p *Parent) takeOver(frames []unchangedFrame, size int64, full int) (kept []packedSegment, copies []copiedFrame) {
	taken := make(map[int]int) // frames that hold certain pages, by the number of their first
	lists := make([][]format.Frame, len(p.segments))
	live := make([]int64, len(p.segments))
	copied := func(f, from *format.Frame) {
		c := copiedFrame{frame: *f, from: from}
		c.frame.Stored, c.frame.Codec = from.Stored, from.Codec
		copies = append(copies, c)
	}
	for i := range frames {
		f := &frames[i].frame
		at := frames[i].at + taken[frames[i].at]
		if !p.holds(at, f) {
			copied(f, &p.frames[frames[i].at])
			continue
		}
		taken[frames[i].at]++
		from := &p.frames[at]
		f.Segment, f.Offset, f.Stored, f.Codec = from.Segment, from.Offset, from.Stored, from.Codec
		lists[from.Segment] = append(lists[from.Segment], *f)
		live[from.Segment] += from.Stored
	}

	keep := make([]bool, len(p.segments))
	small, all := 0, 0
	for n, s := range p.segments {
		if keep[n] = live[n] > 0 && live[n] >= s.Size-live[n]; keep[n] {
			all++
			if s.Size < size/16 {
				small++
			}
		}
	}
	for n, s := range p.segments {
		if keep[n] && small > maxSmall+full && s.Size < size/16 {
			keep[n] = false
			all--
		}
	}
	// Whatever is left of many: there is room for as many in a manifest again.
	for n := range p.segments {
		if keep[n] && all > maxSegments/2 {
			keep[n] = false
			all--
		}
	}
	for n, list := range lists {
		slices.SortFunc(list, func(a, b format.Frame) int { return cmp.Compare(a.Offset, b.Offset) })
		if !keep[n] {
			for i := range list {
				from := list[i]
				copied(&list[i], &from)
			}
			continue
		}
		s := packedSegment{desc: p.segments[n], frames: list, parents: true}
		for i := range list {
			s.raw += list[i].Raw
		}
		kept = append(kept, s)
	}
	return kept, copies
}

// copyFrames moves frames of the parent into the spill.
func (in *Intake) copyFrames(ctx context.Context, copies []copiedFrame) ([]spilledFrame, error) {
	slices.SortStableFunc(copies, func(a, b copiedFrame) int {
		return cmp.Or(cmp.Compare(a.from.Segment, b.from.Segment), cmp.Compare(a.from.Offset, b.from.Offset))
	})
	out := make([]spilledFrame, len(copies))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(in.o.Workers)
	for i := 0; i < len(copies); {
		n := 1
		for i+n < len(copies) && copies[i+n].from.Segment == copies[i].from.Segment {
			n++
		}
		from, to := copies[i:i+n], out[i:i+n]
		g.Go(func() error {
			n := from[0].from.Segment
			return in.copySegment(ctx, "the parent's "+titleSegment(n), "; --parent none takes a snapshot without it", in.o.Parent.segments[n], from, to)
		})
		i += n
	}
	return out, g.Wait()
}

// copySegment copies frames out of one segment, whose name errors have; hint follows where a frame does not verify. They are verified: what is damaged must not become part of another segment.
func (in *Intake) copySegment(ctx context.Context, name, hint string, d ocispec.Descriptor, copies []copiedFrame, to []spilledFrame) error {
	damaged := func(err error) error { return damaged(name, d.Digest, err) }
	at, err := openSegment(ctx, in.dst, d, true)
	if err != nil {
		return err
	}
	defer at.Close()
	dec, err := format.NewDecoder()
	if err != nil {
		return err
	}
	defer dec.Close()
	buf := format.LendBuffer()
	defer format.ReturnBuffer(buf)
	for i, c := range copies {
		if err := ctx.Err(); err != nil {
			return err
		}
		stored := buf[:c.from.Stored]
		if i == 0 || c.from.Offset != copies[i-1].from.Offset {
			if n, err := at.ReadAt(stored, c.from.Offset); n < len(stored) && err == io.EOF {
				return damaged(errShort)
			} else if n < len(stored) {
				return fmt.Errorf("read %s: %w", name, err)
			}
		}
		if _, err := dec.Decode(c.from, stored); err != nil {
			return damaged(fmt.Errorf("a frame does not verify%s: %w", hint, err))
		}
		if to[i], err = in.spill.putFrame(c.frame, stored); err != nil {
			return err
		}
	}
	return nil
}
