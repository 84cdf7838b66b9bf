package image

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image/format"
)

// Devices are the device memory of a snapshot, read piece by piece and in any order. All segments that it is in are open.
type Devices struct {
	pieces []devicePiece
	pages  *Pages
}

// OpenDevices opens the device memory of the snapshot d, of which there may be none. What src gives must be an io.ReaderAt, as
// [os.File] is. Errors are those of [Open], [Snapshot.ReadIndex] and of src. The caller must call Close.
func OpenDevices(ctx context.Context, src Fetcher, d ocispec.Descriptor) (*Devices, error) {
	s, x, err := openIndex(ctx, src, d)
	if err != nil {
		return nil, err
	}
	g := s.Config.GPU
	devices := &Devices{pieces: devicePieces(g), pages: newPages(x, deviceMaps(g, x.PageSize))}
	if err := devices.pages.open(ctx, src, s); err != nil {
		devices.Close()
		return nil, err
	}
	return devices, nil
}

// Pieces are those of all processes, in the order of the config, by which they are numbered.
func (d *Devices) Pieces() []GPUPiece {
	all := make([]GPUPiece, len(d.pieces))
	for i, p := range d.pieces {
		all[i] = p.GPUPiece
	}
	return all
}

// Close closes the segments.
func (d *Devices) Close() { d.pages.Close() }

// DevicePart is what [DevicesReader.Read] of a part of a piece needs of segments that are still on their way.
type DevicePart []arrivingTo

// arrivingTo is a segment of which all before end is needed.
type arrivingTo struct {
	segment Arriving
	end     int64
}

// Part looks up what a part of a piece, by its number, needs.
func (d *Devices) Part(piece int, offset, length int64) (needs DevicePart) {
	p, m := d.pieces[piece], d.pages
	addr := p.Address + uint64(offset)
	for _, i := range m.between(p.file, addr, addr+uint64(length)) {
		f := &m.x.Frames[i]
		a, arriving := m.segments[f.Segment].(Arriving)
		if !arriving {
			continue
		}
		n := slices.IndexFunc(needs, func(n arrivingTo) bool { return n.segment == a })
		if n < 0 {
			n, needs = len(needs), append(needs, arrivingTo{segment: a})
		}
		needs[n].end = max(needs[n].end, f.Offset+f.Stored)
	}
	return needs
}

// There reports whether all of it can be read without waiting for segments to arrive.
func (p DevicePart) There() bool {
	for _, n := range p {
		if !n.segment.There(n.end) {
			return false
		}
	}
	return true
}

// DevicesReader reads device memory, for one goroutine.
type DevicesReader struct {
	d *Devices
	r *PagesReader
}

// Reader returns what one goroutine reads with; it takes some MiB.
func (d *Devices) Reader() (*DevicesReader, error) {
	r, err := d.pages.Reader()
	if err != nil {
		return nil, err
	}
	return &DevicesReader{d: d, r: r}, nil
}

// Close gives back what the reader holds.
func (r *DevicesReader) Close() { r.r.Close() }

// Read fills dst with what a piece, by its number, holds from offset on, verified. It gives false, and leaves dst as it is, where
// that is nothing but zeros. It is quickest, and reads nothing twice, where the address of the piece, offset and the length of
// dst are multiples of 1 MiB. What is not in the piece gives an error of kind InvalidArgument, what does not verify one of
// kind DataLoss, as where a segment is cut short; dst is of no use then.
func (r *DevicesReader) Read(piece int, offset int64, dst []byte) (bool, error) {
	if piece < 0 || piece >= len(r.d.pieces) || offset < 0 || offset > r.d.pieces[piece].Size || int64(len(dst)) > r.d.pieces[piece].Size-offset {
		return false, fmt.Errorf("read device memory: %d bytes from %d on of piece %d: %w", len(dst), offset, piece, errdefs.ErrInvalidArgument)
	}
	p := r.d.pieces[piece]
	return r.fill(p.file, p.Address+uint64(offset), dst)
}

// fill fills dst with what a file has from addr on.
func (r *DevicesReader) fill(file, addr uint64, dst []byte) (bool, error) {
	m := r.r.m
	x := m.x
	end := addr + uint64(len(dst))
	filled := addr // up to here
	for _, i := range m.between(file, addr, end) {
		f := &x.Frames[i]
		buf := r.r.buf
		if f.Codec == format.Raw && len(f.Runs) == 1 && f.Runs[0].Addr >= addr && f.Runs[0].Addr+uint64(f.Raw) <= end {
			buf = dst[f.Runs[0].Addr-addr:][:f.Raw] // it stays where it is read to
		}
		raw, err := r.r.frame(i, buf)
		if err != nil {
			return false, err
		}
		for _, run := range f.Runs {
			n := uint64(run.Count * x.PageSize)
			from, to := max(run.Addr, addr), min(run.Addr+n, end)
			if from < to {
				clear(dst[filled-addr : from-addr])
				copy(dst[from-addr:to-addr], raw[from-run.Addr:])
				filled = to
			}
			raw = raw[n:]
		}
	}
	if filled == addr {
		return false, nil
	}
	clear(dst[filled-addr:])
	return true, nil
}

// between returns the frames of a file that have pages between two addresses, or around all that is between them, ascending.
func (m *Pages) between(file, addr, end uint64) []int32 {
	frames := m.frames[file]
	first, _ := slices.BinarySearchFunc(frames, addr, func(i int32, addr uint64) int {
		if m.x.Frames[i].End(m.x.PageSize) <= addr {
			return -1
		}
		return 1
	})
	n := first
	for n < len(frames) && m.x.Frames[frames[n]].Runs[0].Addr < end {
		n++
	}
	return frames[first:n]
}

// checkDevices returns an error unless the device memory of an index is that of the pieces of a config.
func checkDevices(x *format.Index, g *GPU) error {
	maps := deviceMaps(g, x.PageSize)
	frames := x.ByFile()
	for _, f := range x.Files {
		if !f.IsDevice() {
			continue
		}
		if len(maps) == 0 || maps[0].Pages != f.ID || maps[0].Count != f.Count {
			return fmt.Errorf("the config does not have %d pages of %s", f.Count, f)
		}
		if r, ok := strayRun(x, frames[f.ID], maps[0].Runs); !ok {
			return fmt.Errorf("the config has no %s at %#x", f, r.Addr)
		}
		maps = maps[1:]
	}
	if len(maps) > 0 {
		return errors.New("the config has more device memory")
	}
	return nil
}
