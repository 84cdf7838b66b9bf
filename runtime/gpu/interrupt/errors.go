package interrupt

import (
	"fmt"

	"github.com/containerd/errdefs"
)

// PageError says that memory with the page's name does not have its contents. Its kind is DataLoss.
type PageError struct {
	PID    int
	Reason string
}

func (e *PageError) Error() string {
	return fmt.Sprintf("read the interrupt page of process %d: %s", e.PID, e.Reason)
}

// Hint says what it may be.
func (e *PageError) Hint() string {
	return "a program that uses cryo_interrupt.cuh has overwritten its page, or has made memory of that name itself"
}

// Unwrap gives the kind.
func (e *PageError) Unwrap() error { return errdefs.ErrDataLoss }

// VersionError says that the program was compiled with a header of another layout. Its kind is NotImplemented.
type VersionError struct {
	PID     int
	Version uint32
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("read the interrupt page of process %d: its version is %d, and this cryo knows %d", e.PID, e.Version, version)
}

// Hint says what to do.
func (e *VersionError) Hint() string {
	return "compile the program with the cryo_interrupt.cuh of this version of cryo"
}

// Unwrap gives the kind.
func (e *VersionError) Unwrap() error { return errdefs.ErrNotImplemented }

// LimitError says that a process has more pages than are looked at. Its kind is ResourceExhausted.
type LimitError struct{ PID int }

func (e *LimitError) Error() string {
	return fmt.Sprintf("find the interrupt pages of process %d: there are more than %d", e.PID, maxPages)
}

// Unwrap gives the kind.
func (e *LimitError) Unwrap() error { return errdefs.ErrResourceExhausted }
