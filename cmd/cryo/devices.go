package main

import (
	"context"
	"os"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/runtime/checkpoint"
	"github.com/cryo-project/cryo/runtime/gpu"
	"github.com/cryo-project/cryo/runtime/gpu/ring"
)

// devices is the way of device memory that processes have handed over out of the shim's holder into segments.
type devices struct {
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when nothing comes any more
	intake *image.DeviceIntake
	err    error // valid, as intake is, when done is closed
}

// takeInDevices waits for them in the background. images is where the shim puts its record of GPUs, work a directory of ours.
func (a *app) takeInDevices(ctx context.Context, s *store.Store, client *checkpoint.Client, images, work string, f checkpointFlags) *devices {
	ctx, cancel := context.WithCancelCause(ctx)
	d := &devices{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(d.done)
		d.err = d.serve(ctx, a, s, client, images, work, f)
	}()
	return d
}

func (d *devices) serve(ctx context.Context, a *app, s *store.Store, client *checkpoint.Client, images, work string, f checkpointFlags) error {
	conn, err := client.Devices(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	socket, err := conn.File()
	if err != nil {
		return err
	}
	defer socket.Close()
	record, err := gpu.ReadRecord(images)
	if err != nil {
		return err
	}
	var sizes []int64
	for _, p := range record.Processes {
		for _, piece := range p.Pieces {
			sizes = append(sizes, piece.Size)
		}
	}
	if d.intake, err = image.NewDeviceIntake(ctx, f.sender.watch(s), work, ofRecord(record), int64(os.Getpagesize()), f.packOptions(a)); err != nil {
		return err
	}
	err = ring.Receive(ctx, socket, sizes, func(c ring.Chunk, release func()) error {
		defer release()
		return d.intake.Bytes(c.Piece, c.Offset, c.Data)
	})
	if err == nil {
		err = d.intake.End()
	}
	return err
}

// arrived waits until all has come.
func (d *devices) arrived() (*image.DeviceIntake, error) {
	<-d.done
	return d.intake, d.err
}

// close ends what is under way and drops what no snapshot was made of.
func (d *devices) close() {
	d.cancel(nil)
	<-d.done
	if d.intake != nil {
		d.intake.Close()
	}
}
