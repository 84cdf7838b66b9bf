package fill

import (
	"errors"
	"fmt"

	"github.com/containerd/errdefs"
)

// ErrEnded is the result where [Filling.End] came first.
var ErrEnded = errors.New("fill in the container's memory: it was broken off")

// Error says why memory could not be filled in. Its kind is DataLoss if the snapshot is damaged.
type Error struct {
	Reason string
	Damage bool
	hint   string
}

func (e *Error) Error() string { return "fill in the container's memory: " + e.Reason }

// Hint says what to do.
func (e *Error) Hint() string { return e.hint }

// Unwrap gives the kind.
func (e *Error) Unwrap() error {
	if e.Damage {
		return errdefs.ErrDataLoss
	}
	return errdefs.ErrAborted
}

// died is the error of a daemon that has said nothing.
func died(status int) error {
	return &Error{
		Reason: fmt.Sprintf("the process that did it has ended (status %d)", status),
		hint:   "restore it again; look for the reason in the kernel's log if that happens more often (dmesg: out of memory?), and see cryo restore --eager",
	}
}
