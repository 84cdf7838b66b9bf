package gpu

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cryo-project/cryo/runtime/gpu/device"
)

// How long a helper may take. Without a bound, a driver that hangs would hold up the container for ever.
const (
	startTime = 2 * time.Minute  // to initialise the driver; with many GPUs that are off it takes tens of seconds
	askTime   = 30 * time.Second // to answer what takes milliseconds
	slowest   = int64(256 << 20) // bytes a second that are moved at least; measured are 1.6 GB and more
)

// moveTime bounds moving so many bytes.
func moveTime(bytes int64) time.Duration {
	return askTime + time.Duration(bytes/slowest)*time.Second
}

// line is a helper that is started when there is something to ask, and started anew when it has died.
type line struct {
	open  *device.Helper // nil: none
	doubt bool           // one has died, and what it had asked for last may come about still
}

func (l *line) helper(ctx context.Context) (*device.Helper, error) {
	if l.open != nil {
		return l.open, nil
	}
	bounded, cancel := context.WithTimeoutCause(ctx, startTime, fmt.Errorf("the driver is not ready after %s", startTime))
	defer cancel()
	k, err := device.StartHelper(bounded, "")
	if err != nil {
		return nil, err
	}
	l.open = k
	return k, nil
}

// end ends the helper, which undoes nothing.
func (l *line) end() {
	if l.open != nil {
		_ = l.open.Close()
		l.open = nil
	}
}

// lost ends a helper that has died, so that another is started next time.
func (l *line) lost(err error) {
	var died *device.DiedError
	if errors.As(err, &died) {
		l.drop()
	}
}

// drop ends a helper that may have something under way.
func (l *line) drop() {
	if l.open != nil {
		l.end()
		l.doubt = true
	}
}

// ask has a helper do something, and ends one that does not answer in time: the call fails then as if the helper had died.
func ask[T any](ctx context.Context, l *line, bound time.Duration, call func(*device.Helper) (T, error)) (answer T, err error) {
	k, err := l.helper(ctx)
	if err != nil {
		return answer, err
	}
	t := time.AfterFunc(bound, func() { _ = k.Silence(bound) })
	defer t.Stop()
	return call(k)
}
