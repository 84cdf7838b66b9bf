package shim

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/failure"
)

// TestNotRestoredKeepsTheKind: the kind that a process has reported reaches the command, which exits by it.
func TestNotRestoredKeepsTheKind(t *testing.T) {
	for name, c := range map[string]struct{ err, want error }{
		"no kind":            {errors.New("runc has failed"), errdefs.ErrAborted},
		"damaged":            {failure.New(errdefs.ErrDataLoss, "", "a blob is damaged").Doing("fill in memory"), errdefs.ErrDataLoss},
		"misfit":             {failure.New(failure.ErrMisfit, "", "another GPU"), failure.ErrMisfit},
		"denied":             {failure.New(errdefs.ErrPermissionDenied, "", "not granted"), errdefs.ErrPermissionDenied},
		"full":               {failure.New(errdefs.ErrResourceExhausted, "", "no room"), errdefs.ErrResourceExhausted},
		"too slow":           {fmt.Errorf("wait: %w", context.DeadlineExceeded), context.DeadlineExceeded},
		"unknown to clients": {failure.New(errdefs.ErrInternal, "", "x"), errdefs.ErrAborted},
	} {
		t.Run(name, func(t *testing.T) {
			told := failure.Of(errors.Join(notRestored("c", c.err), nil))
			if !errors.Is(&failure.Error{Kind: told.Kind}, c.want) {
				t.Errorf("kind %q, want that of %v", told.Kind, c.want)
			}
		})
	}
}
