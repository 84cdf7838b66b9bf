package registry

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/cryo-project/cryo/image/direct"
)

// stalledError ends a transfer on which nothing, or next to nothing, moves any more. It is a net.Error, so it counts as a timeout.
type stalledError struct{ idle time.Duration }

func (e *stalledError) Error() string   { return "no data, or next to none, for " + e.idle.String() }
func (e *stalledError) Timeout() bool   { return true }
func (e *stalledError) Temporary() bool { return true }

// watchdog cancels a context when nobody kicks it for a while.
type watchdog struct {
	idle   time.Duration
	timer  *time.Timer
	cancel context.CancelCauseFunc
}

func watch(ctx context.Context, idle time.Duration) (context.Context, *watchdog) {
	ctx, cancel := context.WithCancelCause(ctx)
	w := &watchdog{idle: idle, cancel: cancel}
	w.timer = time.AfterFunc(idle, func() { cancel(&stalledError{idle}) })
	return ctx, w
}

func (w *watchdog) kick() { w.timer.Reset(w.idle) }

// leastMoved is how many bytes must move for the watchdog to be kicked. Who sends one at a time has stalled.
const leastMoved = 4 << 10

// pause lets it sleep: from here on somebody else bounds the time.
func (w *watchdog) pause() { w.timer.Stop() }

func (w *watchdog) stop() {
	w.timer.Stop()
	w.cancel(nil)
}

// moved tells whether an attempt that ended with err has made progress by n bytes: next to nothing before a stall is none.
func moved(err error, n int64) bool { return n >= leastMoved || !errors.As(err, new(*stalledError)) }

// maxPiece is how many bytes move between two kicks at most: so many must not take as long as a stall.
const maxPiece = direct.Piece

// watched kicks the watchdog and tells a tracker with every read, and lets the watchdog sleep at the end.
type watched struct {
	io.ReadCloser
	w     *watchdog
	t     *tracker
	since int64 // bytes since the last kick
}

func (r *watched) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p[:min(len(p), maxPiece)])
	r.moved(int64(n))
	if err != nil {
		r.w.pause()
	}
	return n, err
}

func (r *watched) moved(n int64) {
	if r.since += n; r.since >= leastMoved {
		r.since = 0
		r.w.kick()
	}
	r.t.moved(n)
}

// unwatched lets the watchdog sleep while it reads.
type unwatched struct {
	io.ReadCloser
	w *watchdog
}

// Read implements [io.Reader].
func (u *unwatched) Read(p []byte) (int, error) {
	u.w.pause()
	defer u.w.kick()
	return u.ReadCloser.Read(p)
}
