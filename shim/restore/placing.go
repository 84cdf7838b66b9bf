package restore

import (
	"context"

	"golang.org/x/sync/errgroup"

	"github.com/cryo-project/cryo/runtime/channel"
	"github.com/cryo-project/cryo/shim/restorer"
)

// placing is memory of a container that is being put in place.
type placing struct {
	ctx     context.Context
	cancel  context.CancelCauseFunc
	work    errgroup.Group
	suspect func(error) error // sees to it that what is damaged is verified before it is read again
}

func newPlacing(ctx context.Context, suspect func(error) error) *placing {
	p := &placing{suspect: suspect}
	p.ctx, p.cancel = context.WithCancelCause(ctx)
	return p
}

// begin has some of it put in place, over the channel that came with m.
func (p *placing) begin(m *restorer.Message, place func(context.Context, *channel.Channel) error) error {
	c, err := m.Channel()
	if err != nil {
		return err
	}
	p.work.Go(func() error { return p.suspect(place(p.ctx, c)) })
	return nil
}

// wait waits until all is in place.
func (p *placing) wait() error { return p.work.Wait() }

// end ends it, for a reason, and waits until no process depends on it.
func (p *placing) end(reason error) {
	p.cancel(reason)
	_ = p.wait() // who asked for it has been told
}
