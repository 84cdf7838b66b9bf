package load

import (
	"context"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/arrival"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/image/warm"
)

// Memory is a snapshot's device memory, all or some of which may still be on its way here.
type Memory struct {
	*image.Devices
	coming *arrival.Coming // nil: all is here
}

// does is what this process does with the segments that the command is pulling.
const does = "loads device memory"

// Open opens all that will be needed: what happens to the store and to the command's directories afterwards does no harm.
func Open(ctx context.Context, o Order) (_ *Memory, err error) {
	s, err := store.Open(o.Root)
	if err != nil {
		return nil, err
	}
	m := &Memory{}
	var from image.Fetcher = s
	if o.Arrival != "" {
		if m.coming, err = arrival.Join(ctx, s, o.Arrival, o.Awaited, does); err != nil {
			return nil, err
		}
		from = m.coming
		if err := m.coming.Whole(); err != nil {
			m.coming.End(nil)
			return nil, err
		}
	} else if ready, err := warm.New(o.Root).Find(ctx, o.Snapshot.Digest); err != nil {
		return nil, err
	} else if ready != nil {
		defer ready.Close() // what is open by then stays
		from = ready
	}
	if m.Devices, err = image.OpenDevices(ctx, from, o.Snapshot); err != nil {
		m.coming.End(nil)
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
