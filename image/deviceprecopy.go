package image

import (
	"context"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/format"
)

// After names an intake that has taken in device memory while its processes ran, and has ended. Its options are those of d, and it is the caller's to close after [Pack].
func (d *DeviceIntake) After(before *DeviceIntake) {
	d.before, d.taken = before, make(map[OwnedPiece]bool)
	for _, p := range before.gpu.Pieces() {
		d.taken[p] = true
	}
}

// Same is Take of n bytes, whole frames, that are as they were taken in before, of the same process, GPU and addresses.
func (d *DeviceIntake) Same(piece int, offset, n int64) error {
	if err := d.in.failure(); err != nil {
		return err
	}
	err := d.take(piece, offset, n, nil, true, func() {})
	if err == nil {
		err = d.note(d.pieces[piece], offset, n)
	}
	d.in.failed(err)
	return err
}

// note notes frames that are the same.
func (d *DeviceIntake) note(p devicePiece, offset, n int64) error {
	refused := fmt.Errorf("take in device memory: %d bytes at %#x were not taken in before: %w", n, p.Address+uint64(offset), errdefs.ErrInvalidArgument)
	if d.before == nil || (p.Address+uint64(offset))%format.MaxFrame != 0 || n%format.MaxFrame != 0 {
		return refused
	}
	if pid, _, _ := format.DeviceOf(p.file); !d.taken[OwnedPiece{GPUPiece: p.GPUPiece, PID: pid}] {
		return refused
	}
	for ; n > 0; offset, n = offset+format.MaxFrame, n-format.MaxFrame {
		d.same[windowKey{file: p.file, number: (p.Address + uint64(offset)) / format.MaxFrame}] = p
	}
	return nil
}

// adopt takes over what is the same of what was taken in before. A segment of which not all is stays behind, and what is the same of it is copied: no frame of a new segment is unused. d may be nil, or come
// after none.
func (d *DeviceIntake) adopt(ctx context.Context) error {
	if d == nil || d.before == nil {
		return nil
	}
	b := d.before.in
	if !b.ended || b.closed {
		return fmt.Errorf("pack device memory: what was copied before did not arrive completely: %w", errdefs.ErrInternal)
	}
	b.hurry()
	if err := b.work.Wait(); err != nil {
		return err
	}
	files := d.filesBefore()
	to := &d.in.results
	for _, u := range b.results.unchanged {
		if d.adopts(files, &u.frame) {
			to.unchanged = append(to.unchanged, u)
		}
	}
	for _, f := range b.results.pooled {
		if !d.adopts(files, &f.frame) {
			continue
		}
		moved, err := d.in.move(b.spill, f)
		if err != nil {
			return err
		}
		to.pooled = append(to.pooled, moved)
	}
	for _, s := range b.results.alone {
		if err := d.adoptSegment(ctx, files, s); err != nil {
			return err
		}
	}
	return nil
}

// adoptSegment takes over a segment, or copies of its frames.
func (d *DeviceIntake) adoptSegment(ctx context.Context, files map[uint64]uint64, s packedSegment) error {
	var copies []copiedFrame
	for i := range s.frames {
		from := s.frames[i]
		if f := from; d.adopts(files, &f) {
			copies = append(copies, copiedFrame{frame: f, from: &from})
		}
	}
	to := &d.in.results
	if len(copies) == len(s.frames) {
		for i, c := range copies {
			s.frames[i] = c.frame
		}
		to.alone = append(to.alone, s)
		return nil
	}
	if len(copies) == 0 {
		return nil
	}
	moved := make([]spilledFrame, len(copies))
	if err := d.in.copySegment(ctx, "a segment of device memory", "", s.desc, copies, moved); err != nil {
		return err
	}
	to.pooled = append(to.pooled, moved...)
	return nil
}

// move moves a frame here from another spill.
func (in *Intake) move(from *spill, f spilledFrame) (spilledFrame, error) {
	buf := format.LendBuffer()
	defer format.ReturnBuffer(buf)
	stored, err := from.takeFrame(f, buf)
	if err != nil {
		return f, err
	}
	return in.spill.putFrame(f.frame, stored)
}

// adopts reports whether a frame that was taken in before is the same still, and makes it one of this intake's: its pages have other numbers here.
func (d *DeviceIntake) adopts(files map[uint64]uint64, f *format.Frame) bool {
	file, known := files[f.Runs[0].File]
	p, same := d.same[windowKey{file: file, number: f.Runs[0].Addr / format.MaxFrame}]
	if !known || !same {
		return false
	}
	f.Runs = slices.Clone(f.Runs)
	for i := range f.Runs {
		r := &f.Runs[i]
		r.File, r.First = p.file, (p.at+int64(r.Addr-p.Address))/d.in.pageSize
	}
	return true
}

// filesBefore are the numbers here of files that there were before: GPUs may have come in another order.
func (d *DeviceIntake) filesBefore() map[uint64]uint64 {
	files := make(map[uint64]uint64)
	for _, b := range d.before.pieces {
		pid, _, _ := format.DeviceOf(b.file)
		gpu := slices.IndexFunc(d.gpu.Devices, func(g GPUDevice) bool { return g.UUID == b.Device })
		if gpu >= 0 {
			files[b.file] = format.DeviceFile(pid, gpu)
		}
	}
	return files
}
