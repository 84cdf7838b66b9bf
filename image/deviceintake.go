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
// Begin, Bytes and End are for one goroutine. They return early with the cause when something else has gone wrong.
type DeviceIntake struct{ in *Intake }

// NewDeviceIntake starts to take in device memory for a snapshot in dst. The rest is as for [NewIntake]; what is to become one
// snapshot needs the same pageSize and the same choices about segments. Progress is told "devices". The caller must call Close.
func NewDeviceIntake(ctx context.Context, dst BlobStore, dir string, pageSize int64, o PackOptions) (*DeviceIntake, error) {
	in, err := NewIntake(ctx, dst, dir, pageSize, o)
	if err != nil {
		return nil, err
	}
	in.what = "devices"
	return &DeviceIntake{in: in}, nil
}

// Begin says that what comes next is of the process with this pid, of which nothing has come yet.
func (d *DeviceIntake) Begin(pid int) error { return d.in.begin(pages.DeviceFile(pid)) }

// Bytes takes in whole pages of the process's pieces, in ascending order of their addresses. All of every piece must come. data
// may be used again afterwards.
func (d *DeviceIntake) Bytes(address uint64, data []byte) error {
	if d.in.broken == nil && int64(len(data))%d.in.pageSize != 0 {
		d.in.failed(fmt.Errorf("take in device memory: %d bytes at %#x: %w", len(data), address, errdefs.ErrInvalidArgument))
	}
	return d.in.Pages(address, uint64(int64(len(data))/d.in.pageSize), bytes.NewReader(data))
}

// Hurry lets all cores encode: nobody stands still any more. [Pack] does so, too.
func (d *DeviceIntake) Hurry() { d.in.hurry() }

// End says that everything has come. It does not wait until it is stored; [Pack] does.
func (d *DeviceIntake) End() error { return d.in.End() }

// Close waits until nothing is under way any more, and drops what did not become part of a snapshot.
func (d *DeviceIntake) Close() { d.in.Close() }

// deviceMaps describes the device memory of the processes that have handed some over, in the order of their pids.
func (g *GPU) deviceMaps(pageSize int64) (maps []*pages.Pagemap) {
	if g == nil {
		return nil
	}
	for _, p := range g.Processes {
		var runs []pages.Run
		for _, piece := range p.Pieces {
			runs = append(runs, pages.Run{Addr: piece.Address, Count: piece.Size / pageSize})
		}
		if len(runs) > 0 {
			maps = append(maps, pages.DeviceMap(p.PID, runs, pageSize))
		}
	}
	slices.SortFunc(maps, func(a, b *pages.Pagemap) int { return cmp.Compare(a.Pages, b.Pages) })
	return maps
}
