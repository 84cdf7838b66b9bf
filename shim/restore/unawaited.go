package restore

import (
	"context"
	"time"
)

// Unawaited does work that leaves nothing, and does not wait for it when ctx has ended.
func Unawaited(ctx context.Context, work func() error) error {
	done := make(chan error, 1)
	go func() { done <- work() }()
	return awaitOr(ctx, done)
}

// awaitOr gives what comes from done, or why ctx ended before, with a little time for it to come.
func awaitOr(ctx context.Context, done <-chan error) error {
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
