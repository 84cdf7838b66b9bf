package restore

import (
	"context"
	"time"
)

// Unawaited does work that leaves nothing, and waits for it only a little when ctx has ended.
func Unawaited(ctx context.Context, work func() error) error {
	done := make(chan error, 1)
	go func() { done <- work() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-done:
		return err
	case <-time.After(hearTime):
		return context.Cause(ctx)
	}
}

// hearTime is how long work that was interrupted is waited for, if nothing is lost when it goes on.
const hearTime = 300 * time.Millisecond
