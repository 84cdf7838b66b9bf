package fill

import (
	"context"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/arrival"
	"github.com/cryo-project/cryo/image/store"
)

// coming are the segments of a snapshot that the command is pulling.
type coming struct {
	client *arrival.Client
	source *arrival.Source
}

// urgent is how many pages are fetched side by side for which somebody waits: each takes as long as the network does.
const urgent = 4

// newComing reaches the command that listens in dir.
func newComing(ctx context.Context, s *store.Store, dir string) (*coming, error) {
	client, err := arrival.Dial(dir)
	if err != nil {
		return nil, err
	}
	return &coming{client: client, source: arrival.NewSource(ctx, s, client.Read)}, nil
}

// fetchAhead fetches what processes will want as soon as they run, in the background until ended ends it.
func (c *coming) fetchAhead(s *source, arrived func()) (ended func(), err error) {
	wishes, err := wishesOf(s.images, s.pages)
	if err != nil {
		return nil, err
	}
	s.ahead = newAhead(wishes, heldMost, 0)
	return s.ahead.begin(aheadWorkers, wishes, readers(s.pages, func(p *image.Pages, part image.Part) bool { return p.There(part) }), arrived), nil
}

// await waits until nothing of the command is needed any more, and fails where what is missing will not come.
func (c *coming) await(ctx context.Context) error {
	err := c.client.Wait()
	if err == nil {
		if err = c.source.Hold(ctx); err == nil {
			c.client.End(nil)
		}
	}
	return err
}

// end tells the command how it has ended. nil has nobody to tell.
func (c *coming) end(err error) {
	if c == nil {
		return
	}
	c.client.End(err)
	c.client.Close()
}
