package daemon

import (
	"context"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/failure"
)

// Error is an error of containerd, or of a shim, of which containerd passes on the text ([failure.Text]). On its way here its text may have got the names of its kinds as lines of
// their own, which tell a user nothing. Its kind is Err's.
type Error struct{ Err error }

func (e *Error) Error() string {
	message, _, _ := failure.Passed(e.Err)
	text := strings.ReplaceAll(message, "rpc error: code = Unknown desc = ", "")
	lines := strings.Split(text, "\n")
	return strings.Join(append(lines[:1:1], withoutKinds(lines[1:])...), "\n")
}

// withoutKinds returns the lines that are not the name of a kind.
func withoutKinds(lines []string) []string {
	return slices.DeleteFunc(lines, func(line string) bool {
		return slices.ContainsFunc(kinds, func(k error) bool { return k.Error() == strings.TrimSpace(line) })
	})
}

// Hint returns what to do, if a shim has said so.
func (e *Error) Hint() string {
	_, _, hint := failure.Passed(e.Err)
	return strings.TrimSpace(strings.Join(withoutKinds(strings.Split(hint, "\n")), "\n"))
}

// ByRule returns the rule by which a shim has refused; empty: none.
func (e *Error) ByRule() string {
	_, rule, _ := failure.Passed(e.Err)
	return rule
}

// Unwrap returns the error as it came.
func (e *Error) Unwrap() error { return e.Err }

// kinds are those that a shim's errors have.
var kinds = []error{
	errdefs.ErrUnknown, errdefs.ErrInvalidArgument, errdefs.ErrNotFound, errdefs.ErrAlreadyExists, errdefs.ErrPermissionDenied,
	errdefs.ErrResourceExhausted, errdefs.ErrFailedPrecondition, errdefs.ErrAborted, errdefs.ErrNotImplemented, errdefs.ErrInternal,
	errdefs.ErrUnavailable, errdefs.ErrDataLoss, errdefs.ErrUnauthenticated, context.DeadlineExceeded, context.Canceled,
}
