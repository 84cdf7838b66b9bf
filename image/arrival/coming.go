package arrival

import (
	"context"
	"net"

	"github.com/cryo-project/cryo/image/store"
)

// Coming are the segments of a snapshot that another process is pulling.
type Coming struct {
	*Source
	client *Client
	list   net.Conn // nil: see Whole
}

// Join reaches the process that serves dir. who says in that process's errors what this one does with the segments, such as "fills in
// memory". The caller calls End.
func Join(ctx context.Context, s *store.Store, dir, who string) (*Coming, error) {
	client, err := Dial(dir, who)
	if err != nil {
		return nil, err
	}
	return &Coming{client: client, Source: NewSource(ctx, s, client.Read)}, nil
}

// Await waits until nothing of the other process is needed any more, and fails where what is missing will not come.
func (c *Coming) Await(ctx context.Context) error {
	err := c.client.Wait()
	if err == nil {
		if err = c.Hold(ctx); err == nil {
			c.client.End(nil)
		}
	}
	return err
}

// End tells the other process how it has ended. nil has nobody to tell.
func (c *Coming) End(err error) {
	if c == nil {
		return
	}
	c.client.End(err)
	c.client.Close()
	if c.list != nil {
		c.list.Close()
	}
	c.drop()
}
