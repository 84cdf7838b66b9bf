package image

import (
	"context"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"

	"github.com/cryo-project/cryo/image/pages"
	"github.com/cryo-project/cryo/image/segment"
)

// memoryPart is memory of one kind: that of processes and shared memory, or what processes had on devices. Segments that are new hold
// memory of one kind only.
type memoryPart struct {
	in   *Intake
	maps []*pages.Pagemap
	cut  [][]segment.Piece
	// device says that it is of devices.
	device bool
}

// parts gives the memory of a snapshot, cut: that of processes first, and then, if there is some, what they had on devices.
func (s PackSource) parts(cfg Config, maps []*pages.Pagemap, o PackOptions) ([]memoryPart, error) {
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
		parts = append(parts, memoryPart{in: d.in, maps: devices, device: true})
	}
	n := 0
	for i := range parts {
		var err error
		size := o.SegmentSize
		if parts[i].device {
			size = min(size, deviceSegment)
		}
		if parts[i].cut, err = segment.Cut(parts[i].maps, pageSize, size); err != nil {
			return nil, err
		}
		n += len(parts[i].cut)
	}
	if n > maxSegments {
		return nil, tooLarge(n)
	}
	return parts, nil
}

// packMemory gives the segments of a snapshot, in order, all of which are stored then.
func packMemory(ctx context.Context, parts []memoryPart, o PackOptions) ([]packedSegment, error) {
	for _, p := range parts {
		p.in.hurry()
	}
	of := make([][]packedSegment, len(parts))
	g, gctx := errgroup.WithContext(ctx)
	for i, p := range parts {
		g.Go(func() (err error) {
			if o.Parent != nil {
				return p.in.arrived(p.cut) // which segments there are depends on all of the memory
			}
			of[i], err = p.in.segments(gctx, p.cut)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	packed := slices.Concat(of...)
	if o.Parent != nil {
		var err error
		if packed, err = onParent(ctx, parts); err != nil {
			return nil, err
		}
	}
	return slices.DeleteFunc(packed, func(s packedSegment) bool { return s.raw == 0 }), nil
}
