package registry

import (
	"context"
	"io"
)

// Pace holds a pull back while something else is under way that needs the cores and the line.
type Pace struct {
	// All is closed when nothing does any more: until then the snapshot gets no name either.
	All <-chan struct{}
	// Few is how many segments are pulled at once until then. 0: none; [Unpaced]: as many as ever.
	Few int
	// Yield waits, as long as ctx allows, while somebody needs the line. Until then it is called before each read. It may be nil.
	Yield func(ctx context.Context)
}

// Unpaced is for a Pace that holds back nothing but the snapshot's name.
const Unpaced = -1

// pace is a Pace at work. nil holds nothing back.
type pace struct {
	Pace
	few chan struct{} // nil: no bound
}

// Pace has Finish be held back.
func (p *Puller) Pace(x Pace) {
	p.pace = &pace{x, nil}
	if x.Few != Unpaced {
		p.pace.few = make(chan struct{}, x.Few)
	}
}

// enter waits until one more segment may be pulled. Its reader calls leave.
func (p *pace) enter(ctx context.Context) (leave func(), err error) {
	if p == nil || p.few == nil {
		return func() {}, nil
	}
	select {
	case <-p.All:
		return func() {}, nil
	case p.few <- struct{}{}:
		return func() { <-p.few }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// opened waits until all may go on.
func (p *pace) opened(ctx context.Context) error {
	if p == nil {
		return nil
	}
	select {
	case <-p.All:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// paced reads what comes as the pace allows. The watchdog sleeps while nothing is read.
type paced struct {
	io.ReadCloser
	ctx  context.Context
	pace *pace
	dog  *watchdog
}

func (p *paced) Read(b []byte) (int, error) {
	select {
	case <-p.pace.All:
	default:
		p.dog.pause()
		p.pace.Yield(p.ctx)
		p.dog.kick()
	}
	return p.ReadCloser.Read(b)
}

// body gives a body that is read as the pace allows.
func (p *pace) body(ctx context.Context, body io.ReadCloser, dog *watchdog) io.ReadCloser {
	if p == nil || p.Yield == nil {
		return body
	}
	return &paced{body, ctx, p, dog}
}
