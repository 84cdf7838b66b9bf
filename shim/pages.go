package shim

import (
	"context"
	"fmt"
	"os"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/runtime/checkpoint"
	"github.com/cryo-project/cryo/runtime/criu"
	"github.com/cryo-project/cryo/runtime/runc"
)

// configure writes CRIU's configuration for a dump. Where the command takes pages itself, it gives the socket that CRIU shall
// inherit: one that nobody else can reach, whatever the network namespaces of the command, containerd and CRIU are.
func configure(ctx context.Context, c *container, o criu.Options, conversation *checkpoint.Conversation) (pages *os.File, err error) {
	if pages, err = conversation.Pages(); err != nil {
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

// rounds are those of a pre-dump that the command asks for; nil: none. Their images go to work.
func rounds(c *container, conversation *checkpoint.Conversation, work string) (*checkpoint.Rounds, error) {
	asked := conversation.Asked()
	switch {
	case asked.PreDump == 0:
		return nil, nil
	case c.gpus.nvidia:
		return nil, fmt.Errorf("checkpoint %s: a container with GPUs has no pre-dump: device memory comes into its processes at the freeze: %w", c.request.ID, errdefs.ErrNotImplemented)
	case !asked.Pages:
		return nil, fmt.Errorf("checkpoint %s: a pre-dump into files: %w", c.request.ID, errdefs.ErrNotImplemented)
	}
	return &checkpoint.Rounds{Count: asked.PreDump, Dir: work, Pages: conversation.Round}, nil
}

// settle leaves CRIU's configuration without what was for one dump or restore alone: somebody may have runc take a checkpoint, with neither
// a socket nor a daemon for pages.
func settle(ctx context.Context, c *container, o criu.Options) {
	o.PagesDescriptor, o.LazyPages = 0, false
	warn(ctx, "leave CRIU's configuration to others", o.WriteFile(c.bundle.criuConfig()))
}
