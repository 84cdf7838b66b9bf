package save

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/runtime/checkpoint"
	"github.com/cryo-project/cryo/runtime/gpu"
	"github.com/cryo-project/cryo/runtime/gpu/device"
	"github.com/cryo-project/cryo/shim/worker"
)

// devices is the way of device memory that processes have handed over out of the shim's keeper into segments. It is not used where
// there is none.
type devices struct {
	incoming
	idle   chan struct{} // closed by dumped
	dumped func()        // says that CRIU has ended
	freed  chan struct{} // closed by hurry
	hurry  func()        // says that no process stands still any more

	// To be read when no more comes.
	intake *image.DeviceIntake // nil: nothing has come
	took   time.Duration       // from the first to the last

	precopy precopy
}

// takeInDevices waits for device memory in the background. images is where the shim puts its record of it, work a directory of ours.
func (t *taking) takeInDevices(ctx context.Context, images, work string) *devices {
	d := &devices{idle: make(chan struct{}), freed: make(chan struct{})}
	d.dumped = sync.OnceFunc(func() { close(d.idle) })
	d.hurry = sync.OnceFunc(func() { close(d.freed) })
	d.takeIn(ctx, func(ctx context.Context) error {
		begin := func(dst image.BlobStore, g *image.GPU, what string) (*image.DeviceIntake, error) {
			o := t.packOptions()
			if report := o.Progress; report != nil {
				total := g.HandedOver()
				o.Progress = func(_ string, done, _ int64) { report(what, done, total) }
			}
			return image.NewDeviceIntake(ctx, dst, work, g, int64(os.Getpagesize()), o)
		}
		// What is copied ahead may not become part of the snapshot: it is not sent to a registry yet.
		before := d.precopy.begin(ctx, t.shim, func(g *image.GPU) (*image.DeviceIntake, error) { return begin(t.store, g, "precopy") }, func() { t.Ended("precopy") })
		return d.serve(ctx, t.shim, images, before, func(g *image.GPU) (*image.DeviceIntake, error) {
			return begin(t.sender.watch(t.store), g, "devices")
		})
	})
	return d
}

// serve takes in what comes when the container stands still. before returns what was taken in before; nil: nothing was.
func (d *devices) serve(ctx context.Context, shim *worker.Shim, images string, before func() *image.DeviceIntake, begin func(*image.GPU) (*image.DeviceIntake, error)) error {
	conn, err := shim.Devices(ctx)
	copied := before()
	if err != nil {
		return err
	}
	defer conn.Close()
	d.begun.Store(true)
	record, err := gpu.ReadRecord(images)
	if err != nil {
		return err
	}
	if record == nil {
		return fmt.Errorf("take in device memory: the shim has not said whose: %w", errdefs.ErrInternal)
	}
	g := &record.GPU
	if d.intake, err = begin(g); err != nil {
		return err
	}
	if copied != nil {
		d.intake.After(copied)
	}
	go func() {
		for _, step := range []struct {
			told chan struct{}
			do   func()
		}{{d.idle, d.intake.Dumped}, {d.freed, d.intake.Hurry}} {
			select {
			case <-step.told:
				step.do()
			case <-ctx.Done():
				return
			}
		}
	}()
	link, err := device.AcceptRing(ctx, conn) // a copy may be long in coming
	if err != nil {
		return err
	}
	defer link.Close()
	start := time.Now()
	err = link.Receive(ctx, pieceSizes(g), func(c device.Chunk, release func()) error {
		switch {
		case c.Zero > 0:
			return d.intake.Zero(c.Piece, c.Offset, c.Zero)
		case c.Same > 0:
			d.precopy.same += c.Same
			return d.intake.Same(c.Piece, c.Offset, c.Same)
		}
		return d.intake.Take(c.Piece, c.Offset, c.Data, release)
	})
	d.took = time.Since(start)
	if err != nil {
		return err
	}
	return d.intake.End()
}

// arrived waits until all has come. Where the sender has hung up, the shim says why, after the container has gone on.
func (d *devices) arrived(ctx context.Context, h *heldContainer) (*image.DeviceIntake, error) {
	select {
	case <-d.done:
	case <-h.shim.Ended(): // a shim that ends the checkpoint while something is on its way has given up
		select {
		case <-d.done:
		case <-time.After(undoTime):
			d.cancel()
			<-d.done
		}
	}
	if errors.Is(d.err, device.ErrHungUp) && ctx.Err() == nil {
		_, err := h.release(ctx, checkpoint.Resume)
		if err == nil {
			err = h.settle()
		}
		if err != nil {
			return nil, err
		}
	}
	return d.intake, d.err
}

// close ends what is under way and drops what no snapshot was made of.
func (d *devices) close() {
	d.end()
	if d.intake != nil {
		d.intake.Close()
	}
	d.precopy.close()
}

// checkEngine refuses a snapshot without GPUs, where the user wants all processes to hand over what they have there. The shim has refused a container whose processes do not.
func (t *taking) checkEngine(g *image.GPU) error {
	if g != nil || t.GPUEngine != image.KeeperEngine {
		return nil
	}
	return failure.New(errdefs.ErrFailedPrecondition, "leave --gpu-engine out", "checkpoint %s by the engine keeper: the container has no GPUs", t.Container)
}

// pieceSizes are those of all pieces, in the order in which they are numbered.
func pieceSizes(g *image.GPU) (sizes []int64) {
	for _, p := range g.Pieces() {
		sizes = append(sizes, p.Size)
	}
	return sizes
}
