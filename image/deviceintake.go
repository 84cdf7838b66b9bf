package image

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/format"
)

// DeviceIntake makes segments of device memory that processes have handed over, as an [Intake] does of their memory, and may do
// so beside it. Name it in [PackSource.Device] to make the snapshot. It sorts its input into windows. An Intake of its own does the rest, with
// other choices ([intakeKind]).
//
// Take, Bytes and End are for one goroutine. They return early with the cause when something else has gone wrong.
type DeviceIntake struct {
	in      *Intake
	pieces  []devicePiece
	gpu     *GPU
	windows map[windowKey]*deviceWindow // of [deviceSegment] bytes that have not come completely
	before  *DeviceIntake               // has what was copied while the container ran; nil: nothing was
	taken   map[OwnedPiece]bool         // in before
	same    map[windowKey]devicePiece   // of [format.MaxFrame] bytes that are as in before, and where they are
	takers  sync.WaitGroup              // of windows
}

// deviceSegment is the most that a segment of device memory covers, bytes: the sender keeps to its order within that (package
// runtime/gpu/device), so that several segments can be hashed at once.
const deviceSegment = format.DefaultSegmentSize

// deviceWindow is memory that comes in order. One core copies no more than some GB/s, so each window has a goroutine from when something has come of it.
type deviceWindow struct {
	next  int64 // in the file, bytes
	left  int64 // bytes
	parts chan devicePart
}

// deviceParts is how many parts of a window may wait to be copied: more than the sender has room for (package runtime/gpu/device).
const deviceParts = 64

// devicePart is memory of one window.
type devicePart struct {
	addr    uint64
	bytes   int64
	data    []byte // nil: all of it is zero, or the same
	same    bool   // as before
	release func()
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
	d := &DeviceIntake{pieces: devicePieces(g), gpu: g, windows: make(map[windowKey]*deviceWindow), same: make(map[windowKey]devicePiece)}
	for _, p := range d.pieces {
		for offset := int64(0); offset < p.Size; {
			w := d.windows[p.window(offset)]
			if w == nil {
				w = &deviceWindow{next: p.at + offset}
				d.windows[p.window(offset)] = w
			}
			n := p.within(offset, p.Size-offset)
			w.left += n
			offset += n
		}
	}
	o.SegmentSize = min(o.SegmentSize, deviceSegment) // 0 stays the default
	var err error
	if d.in, err = beginIntake(ctx, dst, dir, pageSize, o, ofDevices); err != nil {
		return nil, err
	}
	return d, nil
}

// Bytes is Take, and waits until data may be used again.
func (d *DeviceIntake) Bytes(piece int, offset int64, data []byte) error {
	released := make(chan struct{})
	err := d.Take(piece, offset, data, func() { close(released) })
	if err == nil {
		<-released
		err = d.in.failure()
	}
	return err
}

// Take takes in what a piece has from offset on: whole pages. Pieces are numbered from 0 through all processes, in the order of the
// config. What a process has on one GPU between two multiples of 256 MiB must come in the order of addresses, without gap; such windows
// may come side by side, and are copied side by side. release is called once, by any goroutine, when data may be used again, unless there is an error.
func (d *DeviceIntake) Take(piece int, offset int64, data []byte, release func()) error {
	if err := d.in.failure(); err != nil {
		return err
	}
	err := d.take(piece, offset, int64(len(data)), data, false, release)
	d.in.failed(err)
	return err
}

// Zero is Take of so many bytes that are zero.
func (d *DeviceIntake) Zero(piece int, offset, n int64) error {
	if err := d.in.failure(); err != nil {
		return err
	}
	err := d.take(piece, offset, n, nil, false, func() {})
	d.in.failed(err)
	return err
}

func (d *DeviceIntake) take(piece int, offset, n int64, data []byte, same bool, release func()) error {
	if piece < 0 || piece >= len(d.pieces) || offset < 0 || offset > d.pieces[piece].Size || n < 0 || n > d.pieces[piece].Size-offset || n%d.in.pageSize != 0 {
		return fmt.Errorf("take in device memory: %d bytes from %d on of piece %d: %w", n, offset, piece, errdefs.ErrInvalidArgument)
	}
	p := d.pieces[piece]
	// All of it is looked at before any of it is taken.
	for at := offset; at < offset+n; at += p.within(at, offset+n-at) {
		if w := d.windows[p.window(at)]; w == nil || w.next != p.at+at {
			return fmt.Errorf("take in device memory: %d bytes from %d on of piece %d are not what is next: %w", n, offset, piece, errdefs.ErrInvalidArgument)
		}
	}
	var parts atomic.Int64
	parts.Store(1)
	released := func() {
		if parts.Add(-1) == 0 {
			release()
		}
	}
	defer released()
	for end := offset + n; offset < end; {
		n := p.within(offset, end-offset)
		key := p.window(offset)
		w := d.windows[key]
		if w.parts == nil {
			w.parts = make(chan devicePart, deviceParts)
			stream := d.in.stream(p.file)
			stream.next = w.next / d.in.pageSize
			d.takers.Go(func() { d.copy(stream, w.parts) })
		}
		parts.Add(1)
		part := devicePart{addr: p.Address + uint64(offset), bytes: n, same: same, release: released}
		if data != nil {
			part.data, data = data[:n], data[n:]
		}
		w.parts <- part
		w.next += n
		if w.left -= n; w.left == 0 {
			close(w.parts)
			delete(d.windows, key)
		}
		offset += n
	}
	return nil
}

// copy copies what comes of a window.
func (d *DeviceIntake) copy(s *intakeStream, parts <-chan devicePart) {
	for p := range parts {
		switch pages := uint64(p.bytes / d.in.pageSize); {
		case d.in.failure() != nil:
		case p.same:
			s.skip(p.addr, pages)
		default:
			d.in.failed(s.add(p.addr, pages, p.reader()))
		}
		if s.end%format.MaxFrame == 0 {
			s.endPiece() // its turn may be long in coming
		}
		p.release()
	}
	s.finish()
}

// reader returns the part's bytes, or nil where they are zero.
func (p devicePart) reader() io.Reader {
	if p.data == nil {
		return nil
	}
	return bytes.NewReader(p.data)
}

// ended waits until all that has come is copied. No more may come.
func (d *DeviceIntake) ended() {
	for _, w := range d.windows {
		if w.parts != nil {
			close(w.parts)
		}
	}
	clear(d.windows)
	d.takers.Wait()
}

// window is the one with what the piece has at offset.
func (p devicePiece) window(offset int64) windowKey {
	return windowKey{file: p.file, number: (p.Address + uint64(offset)) / deviceSegment}
}

// within is how much of n bytes from offset on lies in one window.
func (p devicePiece) within(offset, n int64) int64 {
	at := p.Address + uint64(offset)
	return min(n, int64(deviceSegment-at%deviceSegment))
}

// Dumped says that CRIU needs no core any more. Where some encode at once, all do from then on: a process whose memory could not be copied on
// its device stands still until it is here.
func (d *DeviceIntake) Dumped() {
	if d.in.kind.atOnce(d.in.o.Workers) > 0 {
		d.in.hurry()
	}
}

// Hurry is that of an [Intake].
func (d *DeviceIntake) Hurry() { d.in.hurry() }

// End ends the intake: no more device memory comes. It waits until all of it is copied. [Pack] waits until all of it is stored.
func (d *DeviceIntake) End() error {
	d.ended()
	return d.in.End()
}

// Close waits until nothing is under way any more, and drops what did not become part of a snapshot.
func (d *DeviceIntake) Close() {
	d.in.cancel(nil)
	d.ended()
	d.in.Close()
}

// devicePieces returns the pieces of all processes, in the order of the config.
func devicePieces(g *GPU) (all []devicePiece) {
	if g == nil {
		return nil
	}
	sizes := make(map[uint64]int64)
	for _, p := range g.Pieces() {
		gpu := slices.IndexFunc(g.Devices, func(d GPUDevice) bool { return d.UUID == p.Device })
		file := format.DeviceFile(p.PID, gpu)
		all = append(all, devicePiece{GPUPiece: p.GPUPiece, file: file, at: sizes[file]})
		sizes[file] += p.Size
	}
	return all
}

// deviceMaps describes what processes have handed over, by process and GPU.
func deviceMaps(g *GPU, pageSize int64) (maps []*format.Pagemap) {
	runs := make(map[uint64][]format.PageRun)
	for _, p := range devicePieces(g) {
		runs[p.file] = append(runs[p.file], format.PageRun{Addr: p.Address, Count: p.Size / pageSize})
	}
	for file, r := range runs {
		pid, gpu, _ := format.DeviceOf(file)
		maps = append(maps, format.DeviceMap(pid, gpu, r, pageSize))
	}
	slices.SortFunc(maps, func(a, b *format.Pagemap) int { return cmp.Compare(a.Pages, b.Pages) })
	return maps
}
