package save

import (
	"context"
	"os"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/runtime/criu"
	"github.com/cryo-project/cryo/shim/worker"
)

var _ criu.PageSink = (*image.Intake)(nil)

// memory is the way of a container's memory out of CRIU into segments, while it is dumped. It is not used where runc
// or CRIU's configuration has CRIU write its pages to files.
type memory struct {
	incoming
	intake *image.Intake
}

// takeIn starts a goroutine that waits for CRIU and takes in its pages. pid is the container's first process. images is the directory of CRIU's images, and work is a directory for what waits on the disk.
func (t *taking) takeIn(ctx context.Context, pid int, images, work string) (*memory, error) {
	intake, err := image.NewIntake(ctx, t.sender.watch(t.store), work, int64(os.Getpagesize()), t.packOptions())
	if err != nil {
		return nil, err
	}
	_, own := resident(pid)
	intake.Expect(own)
	m := &memory{intake: intake}
	m.takeIn(ctx, func(ctx context.Context) error { return m.serve(ctx, t.shim, images) })
	return m, nil
}

func (m *memory) serve(ctx context.Context, shim *worker.Shim, images string) error {
	conn, err := shim.Pages(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	return criu.ServePages(conn, images, int64(os.Getpagesize()), m.intake, func() { m.begun.Store(true) })
}

// arrived returns what has been taken in of a container that is dumped; nil if its pages are in files.
func (m *memory) arrived() (*image.Intake, error) {
	// CRIU has waited for answers: had it sent anything, it would have been seen.
	if !m.begun.Load() {
		m.cancel()
		return nil, nil
	}
	<-m.done
	return m.intake, m.err
}

// close ends what is under way and drops what no snapshot was made of.
func (m *memory) close() {
	m.end()
	m.intake.Close()
}
