package image

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/pages"
)

// DeviceIntake makes segments of device memory that processes have handed over, as an [Intake] does of their memory, and may do
// so beside it. Name it in [PackSource.Device] to make the snapshot.
//
// Bytes and End are for one goroutine. They return early with the cause when something else has gone wrong.
type DeviceIntake struct {
	in     *Intake
	pieces []devicePiece
	sizes  map[uint64]int64 // of each file that has not come completely, bytes
}

// devicePiece is a piece and where it is in the memory of a snapshot.
type devicePiece struct {
	GPUPiece
	file uint64
	at   int64 // in the file, bytes
}

// NewDeviceIntake starts to take in the device memory that g describes, for a snapshot in dst. The rest is as for [NewIntake]; what is
// to become one snapshot needs the same pageSize and the same choices about segments. Progress is told "devices". The caller must
// call Close.
func NewDeviceIntake(ctx context.Context, dst BlobStore, dir string, g *GPU, pageSize int64, o PackOptions) (*DeviceIntake, error) {
	d := &DeviceIntake{pieces: g.devicePieces(), sizes: make(map[uint64]int64)}
	for _, p := range d.pieces {
		d.sizes[p.file] += p.Size
	}
	in, err := NewIntake(ctx, dst, dir, pageSize, o)
	if err != nil {
		return nil, err
	}
	in.what = "devices"
	d.in = in
	return d, nil
}

// Bytes takes in what a piece has from offset on: whole pages. Pieces are numbered from 0 through all processes, in the order of the
// config. Of each GPU, the pieces must come in the order of their processes and addresses, without gap; those of several
// GPUs may come side by side. data may be used again afterwards.
func (d *DeviceIntake) Bytes(piece int, offset int64, data []byte) error {
	if d.in.broken == nil {
		d.in.failed(d.add(piece, offset, data))
	}
	return d.in.broken
}

func (d *DeviceIntake) add(piece int, offset int64, data []byte) error {
	n := int64(len(data))
	if piece < 0 || piece >= len(d.pieces) || offset < 0 || offset > d.pieces[piece].Size || n > d.pieces[piece].Size-offset || n%d.in.pageSize != 0 {
		return fmt.Errorf("take in device memory: %d bytes from %d on of piece %d: %w", n, offset, piece, errdefs.ErrInvalidArgument)
	}
	p := d.pieces[piece]
	s := d.in.open[p.file]
	switch _, more := d.sizes[p.file]; {
	case !more:
		return fmt.Errorf("take in device memory: piece %d again: %w", piece, errdefs.ErrInvalidArgument)
	case s == nil:
		s = d.in.stream(p.file)
	}
	if at := s.next * d.in.pageSize; at != p.at+offset {
		return fmt.Errorf("take in device memory: %d bytes from %d on of piece %d do not follow the %d before: %w", n, offset, piece, at, errdefs.ErrInvalidArgument)
	}
	if err := s.add(p.Address+uint64(offset), uint64(n/d.in.pageSize), bytes.NewReader(data)); err != nil {
		return err
	}
	if p.at+offset+n == d.sizes[p.file] {
		delete(d.sizes, p.file)
		return s.finish()
	}
	return nil
}

// Hurry is that of an [Intake].
func (d *DeviceIntake) Hurry() { d.in.hurry() }

// End says that everything has come. It does not wait until it is stored; [Pack] does.
func (d *DeviceIntake) End() error { return d.in.End() }

// Close waits until nothing is under way any more, and drops what did not become part of a snapshot.
func (d *DeviceIntake) Close() { d.in.Close() }

// devicePieces gives the pieces of all processes, in the order of the config.
func (g *GPU) devicePieces() (all []devicePiece) {
	if g == nil {
		return nil
	}
	sizes := make(map[uint64]int64)
	for _, p := range g.Processes {
		for _, piece := range p.Pieces {
			gpu := slices.IndexFunc(g.Devices, func(d GPUDevice) bool { return d.UUID == piece.Device })
			file := pages.DeviceFile(p.PID, gpu)
			all = append(all, devicePiece{GPUPiece: piece, file: file, at: sizes[file]})
			sizes[file] += piece.Size
		}
	}
	return all
}

// deviceMaps describes what processes have handed over, by process and GPU.
func (g *GPU) deviceMaps(pageSize int64) (maps []*pages.Pagemap) {
	runs := make(map[uint64][]pages.Run)
	for _, p := range g.devicePieces() {
		runs[p.file] = append(runs[p.file], pages.Run{Addr: p.Address, Count: p.Size / pageSize})
	}
	for file, r := range runs {
		pid, gpu, _ := pages.DeviceOf(file)
		maps = append(maps, pages.DeviceMap(pid, gpu, r, pageSize))
	}
	slices.SortFunc(maps, func(a, b *pages.Pagemap) int { return cmp.Compare(a.Pages, b.Pages) })
	return maps
}
