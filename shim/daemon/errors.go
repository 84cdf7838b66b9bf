package daemon

import (
	"context"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
)

// Error is an error of containerd. On its way here its text may have got the names of its kinds as lines of their own, which tell a user nothing. Its kind is Err's.
type Error struct{ Err error }

func (e *Error) Error() string {
	text := strings.ReplaceAll(e.Err.Error(), "rpc error: code = Unknown desc = ", "")
	lines := strings.Split(text, "\n")
	kept := lines[:1]
	for _, line := range lines[1:] {
		if !slices.ContainsFunc(kinds, func(k error) bool { return k.Error() == strings.TrimSpace(line) }) {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "\n")
}

// Unwrap gives the error as it came.
func (e *Error) Unwrap() error { return e.Err }

// kinds are those that a shim's errors have.
var kinds = []error{
	errdefs.ErrUnknown, errdefs.ErrInvalidArgument, errdefs.ErrNotFound, errdefs.ErrAlreadyExists, errdefs.ErrPermissionDenied,
	errdefs.ErrResourceExhausted, errdefs.ErrFailedPrecondition, errdefs.ErrAborted, errdefs.ErrNotImplemented, errdefs.ErrInternal,
	errdefs.ErrUnavailable, errdefs.ErrDataLoss, errdefs.ErrUnauthenticated, context.DeadlineExceeded, context.Canceled,
}
