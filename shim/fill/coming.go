package fill

import (
	"context"
	"sync"

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

// fetchAhead fetches what processes will want as soon as they run, in the background until ended ends it. It never fails: what does not come is
// asked for again by who wants it.
func (c *coming) fetchAhead(s *source, arrived func()) (ended func(), err error) {
	wishes, err := wishesOf(s.images, s.pages)
	if err != nil {
		return nil, err
	}
	queue := make(chan wish, len(wishes))
	for _, w := range wishes {
		queue <- w
	}
	close(queue)
	s.ahead = newAhead(wishes)
	var readers sync.WaitGroup
	for range min(aheadWorkers, len(wishes)) {
		r, err := s.pages.Reader()
		if err != nil {
			break // others do it, or nobody
		}
		readers.Go(func() {
			defer r.Close()
			s.ahead.fetch(queue, pieces{s.pages, r}, arrived)
		})
	}
	return func() {
		s.ahead.stop()
		readers.Wait()
	}, nil
}

// pieces are what [ahead.fetch] reads.
type pieces struct {
	*image.Pages
	*image.PagesReader
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
