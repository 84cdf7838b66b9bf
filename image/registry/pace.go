package registry

import "context"

// Pace holds a pull back while something else is under way that needs the cores, the disk and the line. The zero value holds nothing back.
type Pace struct {
	// All is closed when nothing does any more: until then the snapshot gets no name either. nil: nothing does.
	All <-chan struct{}
	// Slots has a place for each segment that may be pulled at once until then; nil: as many as ever.
	Slots chan struct{}
}

// Pace has Finish be held back.
func (p *Puller) Pace(x Pace) { p.pace = x }

// enter waits until one more segment may be pulled. Its reader calls leave.
func (p Pace) enter(ctx context.Context) (leave func(), err error) {
	if p.All == nil || p.Slots == nil {
		return func() {}, nil
	}
	select {
	case <-p.All:
		return func() {}, nil
	case p.Slots <- struct{}{}:
		return func() { <-p.Slots }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// opened waits until all may go on.
func (p Pace) opened(ctx context.Context) error {
	if p.All == nil {
		return nil
	}
	select {
	case <-p.All:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
