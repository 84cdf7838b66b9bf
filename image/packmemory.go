package image

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"

	"github.com/cryo-project/cryo/image/format"
)

// memoryPart is memory of one kind: that of processes and shared memory, or what processes had on devices. Segments that are new hold
// memory of one kind only.
type memoryPart struct {
	in   *Intake
	maps []*format.Pagemap
	// device, unless nil, is that of devices.
	device *DeviceIntake
}

// parts returns the memory of a snapshot: that of processes first, and then, if there is some, what they had on devices.
func (s PackSource) parts(cfg Config, maps []*format.Pagemap, o PackOptions) ([]memoryPart, error) {
	pageSize := int64(cfg.Host.PageSize)
	parts := []memoryPart{{in: s.Memory, maps: maps}}
	devices := deviceMaps(cfg.GPU, pageSize)
	switch d := s.Device; {
	case len(devices) > 0 && d == nil:
		return nil, fmt.Errorf("pack snapshot: there is no device memory: %w", errdefs.ErrInvalidArgument)
	case len(devices) == 0 && d != nil:
		return nil, fmt.Errorf("pack snapshot: no process has handed device memory over: %w", errdefs.ErrInvalidArgument)
	case d != nil:
		do := d.in.o
		if d.in.pageSize != pageSize || do.SegmentSize != min(o.SegmentSize, deviceSegment) || (do.Compression == "none") != (o.Compression == "none") || do.Parent != o.Parent {
			return nil, fmt.Errorf("pack snapshot: device memory was taken in by other choices: %w", errdefs.ErrInvalidArgument)
		}
		parts = append(parts, memoryPart{in: d.in, maps: devices, device: d})
	}
	return parts, nil
}

// packMemory returns the segments of a snapshot, in order, all of which are stored then: those of the parent, if there is one, and then what is new.
func packMemory(ctx context.Context, parts []memoryPart, o PackOptions) (out []packedSegment, err error) {
	for _, p := range parts {
		p.in.hurry()
	}
	rank, full := make(map[uint64]int), 0
	var unchanged []unchangedFrame
	for _, p := range parts {
		if err := p.in.arrived(p.maps); err != nil {
			return nil, err
		}
		if err := p.device.adopt(ctx); err != nil {
			return nil, err
		}
		for _, m := range p.maps {
			rank[m.Pages] = len(rank)
		}
		full += int(p.in.received.Load() / p.in.o.SegmentSize)
		unchanged = append(unchanged, p.in.results.unchanged...)
	}
	byMemory := func(a, b *format.Frame) int {
		return cmp.Or(cmp.Compare(rank[a.Runs[0].File], rank[b.Runs[0].File]), cmp.Compare(a.Runs[0].Addr, b.Runs[0].Addr))
	}
	var copies []copiedFrame
	if o.Parent != nil {
		slices.SortFunc(unchanged, func(a, b unchangedFrame) int { return byMemory(&a.frame, &b.frame) })
		out, copies = o.Parent.takeOver(unchanged, o.SegmentSize, full)
	}
	for _, p := range parts {
		var own []copiedFrame
		for _, c := range copies {
			if onDevice(c.frame) == (p.device != nil) {
				own = append(own, c)
			}
		}
		added, err := p.in.added(ctx, own, byMemory)
		if err != nil {
			return nil, err
		}
		out = append(out, added...)
	}
	if n := len(out); n > maxSegments {
		return nil, tooLarge(n)
	}
	return out, nil
}

// added returns the segments with what the parent has not, and with copies of what it has: windows that are segments of their own, then all
// else in the order of memory.
func (in *Intake) added(ctx context.Context, copies []copiedFrame, byMemory func(a, b *format.Frame) int) ([]packedSegment, error) {
	alone, rest := in.results.alone, in.results.pooled
	copied, err := in.copyFrames(ctx, copies)
	if err != nil {
		return nil, err
	}
	rest = append(rest, copied...)
	slices.SortFunc(alone, func(a, b packedSegment) int { return byMemory(&a.frames[0], &b.frames[0]) })
	slices.SortFunc(rest, func(a, b spilledFrame) int { return byMemory(&a.frame, &b.frame) })
	pools := pool(rest, in.o.SegmentSize)
	pooled := make([]packedSegment, len(pools))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(in.o.Workers)
	for i, frames := range pools {
		g.Go(func() (err error) {
			s := segmentWriter{dst: in.dst}
			pooled[i], err = s.end(ctx, in.unspill(ctx, &s, frames))
			return err
		})
	}
	err = g.Wait()
	return append(alone, pooled...), err
}

// pool cuts frames into segments of at most size bytes.
func pool(frames []spilledFrame, size int64) (pools [][]spilledFrame) {
	var sum int64
	for i, first := 0, 0; i < len(frames); i++ {
		sum += frames[i].frame.Stored
		if i+1 == len(frames) || sum+frames[i+1].frame.Stored > size {
			pools = append(pools, frames[first:i+1])
			first, sum = i+1, 0
		}
	}
	return pools
}
