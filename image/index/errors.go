package index

import (
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/spec/failure"
)

// Error says that a text is not an index. Its kind is DataLoss.
type Error struct {
	Line   int // from 1; 0: the index as a whole
	Reason string
}

func (e *Error) Error() string {
	if e.Line == 0 {
		return "read index: " + e.Reason
	}
	return fmt.Sprintf("read index: line %d: %s", e.Line, e.Reason)
}

// Unwrap gives the kind of the error.
func (e *Error) Unwrap() error { return errdefs.ErrDataLoss }

// Hint says what to do next.
func (e *Error) Hint() string {
	return "the snapshot is damaged or was not written by cryo; repair it with cryo pull --repair, or take a new one"
}

func broken(format string, args ...any) error { return &Error{Reason: fmt.Sprintf(format, args...)} }

// otherVersion says that an index is of a version that this package does not read.
func otherVersion(v string) error {
	return failure.New(errdefs.ErrNotImplemented, "use the version of cryo that took the snapshot, or a newer one", "read index: version %q, not one of 1 to %d", v, Version)
}
