package load

import (
	"context"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/arrival"
	"github.com/cryo-project/cryo/shim/order"
)

// Memory is a snapshot's device memory, all or some of which may still be on its way here.
type Memory struct {
	*image.Devices
	coming *arrival.Coming // nil: all is here
}

// does is what this process does with the segments that the restore process is pulling.
const does = "loads device memory"

// Open opens all that will be needed: what happens to the store and to the restore process's directories afterwards does no harm.
func Open(ctx context.Context, o order.Order) (*Memory, error) {
	from, coming, done, err := o.Open(ctx, does)
	defer done()
	m := &Memory{coming: coming}
	if err == nil {
		m.Devices, err = image.OpenDevices(ctx, from, o.Snapshot)
	}
	if err != nil {
		coming.End(nil)
		return nil, err
	}
	return m, nil
}

// arrive tells q what comes, and has fail end all where the rest will not.
func (m *Memory) arrive(ctx context.Context, q *queue, fail context.CancelCauseFunc) {
	if m.coming == nil {
		return
	}
	go m.coming.Follow(ctx, q.look)
	go func() {
		if err := m.coming.Await(ctx); err != nil {
			fail(err)
		}
	}()
}

// Close closes the segments. Who pulls them is told that nothing is needed any more, also after an error: that is told to the shim, which the
// command waits for.
func (m *Memory) Close() {
	m.coming.End(nil)
	m.Devices.Close()
}
