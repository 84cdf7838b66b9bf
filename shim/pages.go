package shim

import (
	"context"
	"os"

	"github.com/cryo-project/cryo/runtime/criu"
	"github.com/cryo-project/cryo/runtime/runc"
	"github.com/cryo-project/cryo/shim/worker"
)

// configure writes CRIU's configuration for a dump. Where a process holds the container, it takes the pages itself, and configure returns the socket that CRIU shall
// inherit: one that no other process can reach, whatever the network namespaces are.
func configure(c *container, o criu.Options, holder *worker.Holder) (pages *os.File, err error) {
	if pages, err = holder.Pages(); err != nil {
		return nil, err
	}
	if pages != nil {
		o.PagesDescriptor = runc.PagesDescriptor
	}
	if err := o.WriteFile(c.bundle.criuConfig()); err != nil {
		pages.Close()
		return nil, err
	}
	return pages, nil
}

// settle leaves CRIU's configuration without what was for one dump or restore alone: a client may have runc take a checkpoint, with neither
// a socket nor a daemon for pages.
func settle(ctx context.Context, c *container, o criu.Options) {
	o.PagesDescriptor, o.LazyPages = 0, false
	warn(ctx, "leave CRIU's configuration to others", o.WriteFile(c.bundle.criuConfig()))
}
