package gpu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"

	"github.com/cryo-project/cryo/image/record"
	"github.com/cryo-project/cryo/runtime/gpu/device"
)

// Source brings device memory out of a snapshot.
type Source interface {
	// Peer is the connection to it, which package device speaks on. It is closed by Close.
	Peer() *os.File
	// Wait waits until it has ended, and says why it has brought nothing, or not all.
	Wait() error
	// Close ends it at once.
	Close() error
}

// importTask is memory on its way to devices, for processes that are restored meanwhile, or that is there already.
type importTask struct {
	keeper *device.Keeper  // nil: it is kept
	kept   *PrewarmedLease // nil: it is not
	files  []*os.File      // of all pieces, in the order of the record

	source Source // nil: it is kept

	*task // is over when all is on the devices, or cannot be; nil: it was not begun
}

// Pieces are all that a snapshot's processes had handed over, with the devices that take the places of those it was on; nil where there are too few of these.
func Pieces(g *record.GPU, places []device.Device) (pieces []record.GPUPiece) {
	for _, p := range g.Pieces() {
		i := slices.IndexFunc(g.Devices, func(d record.GPUDevice) bool { return d.UUID == p.Device })
		if i < 0 || i >= len(places) {
			return nil
		}
		p.GPUPiece.Device = places[i].UUID
		pieces = append(pieces, p.GPUPiece)
	}
	return pieces
}

// bring has a keeper take memory for what was handed over, and has that filled. What must be known before goes on while the driver is initialised.
func (r *Restore) bring(ctx context.Context, before func(context.Context) error) error {
	c, err := r.launch(ctx)
	if err != nil {
		return err
	}
	if err = before(ctx); err == nil {
		err = r.take(ctx, c)
	}
	if err != nil {
		c.end()
	}
	return err
}

// launch has a keeper initialise the driver, and the caller open the snapshot, while it is not known yet what fits where.
// It gives nil where nothing was handed over.
func (r *Restore) launch(ctx context.Context) (*importTask, error) {
	if len(r.Record.Pieces()) == 0 {
		return nil, nil
	}
	h, err := device.StartKeeper(ctx, device.KeeperOptions{})
	if err != nil {
		return nil, err
	}
	c := &importTask{keeper: h}
	if c.source, err = r.Bring(); err != nil {
		c.end()
		return nil, err
	}
	return c, nil
}

// take has the keeper take memory at the places of the devices it was on, and has that memory filled.
func (r *Restore) take(ctx context.Context, c *importTask) error {
	if c == nil {
		return nil
	}
	pieces := Pieces(&r.Record.GPU, r.places)
	defer context.AfterFunc(ctx, func() { _ = c.keeper.Kill() })() // it may have ended
	if err := c.keeper.Open(device.DevicesOf(pieces)); err != nil {
		return err
	}
	var err error
	if c.files, err = c.keeper.Make(ctx, pieces); err != nil {
		return err
	}
	if len(c.files) != len(pieces) {
		return fmt.Errorf("take memory of GPUs: %d descriptors for %d pieces: %w", len(c.files), len(pieces), errdefs.ErrInternal)
	}
	c.task = beside(c.receive)
	r.coming = c
	return nil
}

// receive waits until all is on the devices. The descriptors have the memory then, and the keeper lets go of it. It is not ended before the
// processes have theirs, unless they need the room of its contexts: the driver would be as long at that as at the attachment, one after the other.
func (c *importTask) receive() error {
	err := c.keeper.Receive(context.Background(), c.source.Peer()) // see end
	switch {
	case err == nil:
		go c.keeper.LetGo(context.Background()) // where it fails, its end does so
	case !isKeeperError(err):
		if cause := c.source.Wait(); cause != nil {
			return cause
		}
	}
	return err
}

// isKeeperError reports whether an error is the keeper's own; else the process that brings memory knows why it has hung up.
func isKeeperError(err error) bool {
	var (
		call *device.CallError
		died *device.DiedError
	)
	return errors.As(err, &call) || errors.As(err, &died)
}

// attach gives restored processes what they had handed over, and opens their gates.
func (r *Restore) attach(ctx context.Context, restored []cudaProcess) error {
	if r.coming == nil { // nothing was handed over, but processes may have let go of what they share
		return r.attachAll(ctx, restored, nil, &filler{})
	}
	if r.coming.kept != nil {
		r.coming.kept.Use(ctx)
	}
	err := r.attachTo(ctx, restored)
	if r.coming.kept == nil || !onlyRefused(err) {
		return err
	}
	// The memory, or a GPU, is not what it was when it was loaded. A process that has its own keeps it.
	log.G(ctx).WithError(err).Warn("attach device memory that was kept loaded; it is loaded anew")
	r.coming.end()
	r.coming = nil
	if again := r.bring(ctx, func(context.Context) error { return nil }); again != nil { // the places are known
		return errors.Join(again, err)
	}
	return r.attachTo(ctx, restored)
}

// attachTo waits until all is on the devices.
func (r *Restore) attachTo(ctx context.Context, restored []cudaProcess) error {
	select {
	case <-r.coming.done:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if r.coming.err != nil {
		return r.coming.err
	}
	return r.attachAll(ctx, restored, r.coming.files, &filler{keeper: r.coming.keeper})
}

func (r *Restore) attachAll(ctx context.Context, restored []cudaProcess, files []*os.File, f *filler) error {
	defer f.end()
	all := r.owners(ctx, restored, files)
	err := giveBack(ctx, r.Container, all, f, nil)
	if err != nil {
		for _, g := range all {
			g.hangUp()
		}
	}
	return err
}

// owners are the processes that are to have memory which was handed over, when all of it is on the devices.
func (r *Restore) owners(ctx context.Context, restored []cudaProcess, files []*os.File) (all []*given) {
	pieces := Pieces(&r.Record.GPU, r.places)
	for _, saved := range r.Record.Processes {
		n := len(saved.Pieces)
		i := slices.IndexFunc(restored, func(p cudaProcess) bool { return p.Inner == saved.PID })
		if i >= 0 && (n+len(saved.Imports) > 0 || saved.Parted) {
			all = append(all, &given{cudaProcess: restored[i], pieces: pieces[:n], files: files[:n], imports: saved.Imports, released: true, alone: func() { r.makeRoom(ctx) }})
		}
		pieces, files = pieces[n:], files[n:]
	}
	return all
}

// makeRoom waits until all is on the devices, and ends the keeper. ctx ends the wait, of which a registry may say how long it is.
func (r *Restore) makeRoom(ctx context.Context) {
	if r.coming == nil || r.coming.keeper == nil {
		return
	}
	select {
	case <-r.coming.done:
	case <-ctx.Done():
		return
	}
	if r.coming.err == nil {
		_ = r.coming.keeper.Close()
	}
}

// end gives up what is not with a process.
func (c *importTask) end() {
	if c == nil {
		return
	}
	if c.keeper != nil {
		_ = c.keeper.Kill() // it may have ended
	}
	if c.source != nil {
		_ = c.source.Close()
	}
	c.wait()
	closeFiles(c.files)
	if c.keeper != nil {
		_ = c.keeper.Close() // its contexts take the longest
	}
	if c.kept != nil {
		_ = c.kept.Close() // nothing can be done about it
	}
}
