package save

import (
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"time"

	"github.com/cryo-project/cryo/runtime/gpu/device"
)

// incoming is what comes from a container that is dumped, and is taken in in the background.
type incoming struct {
	cancel context.CancelFunc
	begun  atomic.Bool   // something has come
	done   chan struct{} // closed when no more comes
	err    error         // why not all has come, to be read when done is closed
}

// takeIn has serve take it in, until ctx ends.
func (in *incoming) takeIn(ctx context.Context, serve func(context.Context) error) {
	ctx, in.cancel = context.WithCancel(ctx)
	in.done = make(chan struct{})
	go func() {
		defer close(in.done)
		in.err = serve(ctx)
	}()
}

// end ends what is under way.
func (in *incoming) end() {
	in.cancel()
	<-in.done
}

// explain returns the reason why there is no snapshot: err, unless the shim or CRIU failed because this process did.
func (in *incoming) explain(ctx context.Context, err error) error {
	if !in.begun.Load() {
		return err
	}
	select {
	case <-in.done:
	case <-time.After(time.Second):
		return err
	}
	if in.err == nil || ctx.Err() != nil || isLost(err) || hungUp(in.err) {
		return err
	}
	return in.err
}

// hungUp reports whether the sender has hung up, which knows why.
func hungUp(err error) bool {
	var cut *net.OpError
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &cut) || errors.Is(err, device.ErrHungUp)
}
