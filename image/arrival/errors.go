package arrival

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
)

// doing is where errors arise.
const doing = "pull the segments: "

// Error says why segments do not come. Its kind is DataLoss, Canceled or Unavailable.
type Error struct {
	Reason string
	kind   error
	hint   string
}

func (e *Error) Error() string { return doing + e.Reason }

// Hint says what to do.
func (e *Error) Hint() string { return e.hint }

// Unwrap gives the kind.
func (e *Error) Unwrap() error { return e.kind }

// failure is an error on its way to another process.
type failure struct {
	Reason   string `json:"reason"`
	Hint     string `json:"hint,omitempty"`
	Damage   bool   `json:"damage,omitempty"`
	Canceled bool   `json:"canceled,omitempty"`
}

// maxText bounds what an error may say, so that a message has room for it.
const maxText = 8 << 10

func newFailure(err error) *failure {
	f := &failure{Reason: strings.TrimPrefix(err.Error(), doing), Damage: errdefs.IsDataLoss(err), Canceled: errors.Is(err, context.Canceled)}
	var h interface{ Hint() string }
	if errors.As(err, &h) {
		f.Hint = h.Hint()
	}
	f.Reason, f.Hint = f.Reason[:min(len(f.Reason), maxText)], f.Hint[:min(len(f.Hint), maxText)]
	return f
}

func (f *failure) error() error {
	e := &Error{Reason: f.Reason, hint: f.Hint, kind: errdefs.ErrUnavailable}
	switch {
	case f.Damage:
		e.kind = errdefs.ErrDataLoss
	case f.Canceled:
		e.kind = context.Canceled
	}
	return e
}

// errGone is the error of a client whose server has ended without a word.
var errGone = &Error{
	Reason: "the command that pulled them has ended", kind: errdefs.ErrUnavailable,
	hint: "restore it again: what has come is kept, and the rest is pulled then",
}

// LeftError says that a client has ended without a word. Who sees to that process may know why. Its kind is Aborted.
type LeftError struct {
	Does string // what it did with the segments
}

func (e *LeftError) Error() string {
	return fmt.Sprintf("%sthe process that %s has ended", doing, e.Does)
}

// Hint says what to do.
func (e *LeftError) Hint() string {
	return "restore it again: what has come is kept; look for the reason in the kernel's log if that happens more often (dmesg: out of memory?)"
}

// Unwrap gives the kind.
func (e *LeftError) Unwrap() error { return errdefs.ErrAborted }
