package registry

import (
	"context"
	"io"
	"sync/atomic"
	"time"
)

// Pace holds a pull back while something else is under way that needs the cores and the line.
type Pace struct {
	// All is closed when nothing does any more: until then the snapshot gets no name either.
	All <-chan struct{}
	// MinParallel is how many segments are pulled at once until then, and MaxParallel where they come quickly. 0: none; [Unpaced]: as many as ever.
	MinParallel, MaxParallel int
}

// Unpaced is for a Pace that holds back nothing but the snapshot's name.
const Unpaced = -1

// What comes quickly: so many bytes of a segment, at such a rate. A disk gives two readers less each, a line of 10 Gbit/s one. What waits for the disk or the line
// would wait for what else is pulled, too.
const (
	quickBytes = 16 << 20
	quickRate  = 1 << 30 // bytes a second
)

// pace is a Pace at work. nil holds nothing back.
type pace struct {
	Pace
	places chan struct{} // of segments that may be begun; nil: no bound
	more   atomic.Int64  // places that there may be besides
}

// Pace has Finish be held back.
func (p *Puller) Pace(x Pace) { p.pace = newPace(x) }

func newPace(x Pace) *pace {
	p := &pace{Pace: x}
	if x.MinParallel != Unpaced {
		p.more.Store(int64(max(x.MaxParallel-x.MinParallel, 0)))
		p.places = make(chan struct{}, max(x.MinParallel, x.MaxParallel))
		for range x.MinParallel {
			p.places <- struct{}{}
		}
	}
	return p
}

// enter waits until one more segment may be pulled. Its reader calls leave.
func (p *pace) enter(ctx context.Context) (leave func(), err error) {
	if p == nil || p.places == nil {
		return func() {}, nil
	}
	select {
	case <-p.All:
		return func() {}, nil
	case <-p.places:
		return func() { p.places <- struct{}{} }, nil
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

// grow lets one more segment be pulled, if there may be more.
func (p *pace) grow() {
	if p.more.Add(-1) >= 0 {
		p.places <- struct{}{}
	}
}

// paced notices how quickly a segment comes.
type paced struct {
	io.ReadCloser
	pace *pace

	since time.Time // of the bytes
	bytes int64
}

func (p *paced) Read(b []byte) (int, error) {
	select {
	case <-p.pace.All:
		return p.ReadCloser.Read(b)
	default:
	}
	if p.since.IsZero() {
		p.since = time.Now()
	}
	n, err := p.ReadCloser.Read(b)
	if p.bytes += int64(n); p.bytes >= quickBytes {
		if float64(p.bytes) >= quickRate*time.Since(p.since).Seconds() {
			p.pace.grow()
		}
		p.since, p.bytes = time.Now(), 0
	}
	return n, err
}

// body gives a body of which the pace depends.
func (p *pace) body(body io.ReadCloser) io.ReadCloser {
	if p == nil || p.places == nil {
		return body
	}
	return &paced{ReadCloser: body, pace: p}
}
