package prewarmed

import (
	"fmt"
	"time"

	"github.com/containerd/errdefs"
)

// MuteError says that a process that keeps device memory does not answer. Its kind is Unavailable.
type MuteError struct {
	PID   int
	After time.Duration
}

func (e *MuteError) Error() string {
	return fmt.Sprintf("process %d, which keeps device memory loaded, has not answered within %s", e.PID, e.After)
}

// Hint says what to do.
func (e *MuteError) Hint() string { return "end it with cryo prewarm rm" }

// Unwrap gives the kind.
func (e *MuteError) Unwrap() error { return errdefs.ErrUnavailable }

// RoomError says that device memory does not fit beside what else is on a device. Its kind is ResourceExhausted.
type RoomError struct {
	Device           string // UUID
	Need, Rest, Free int64  // bytes: to load, what else its processes want there, and what there is room for
	Budget           int64  // if that is what it does not fit into
	Busy             int    // so many others on it are in use by restores
}

func (e *RoomError) Error() string {
	text := fmt.Sprintf("prewarm: the snapshot's device memory takes %d MiB on %s", mib(e.Need), e.Device)
	if e.Budget > 0 {
		text += fmt.Sprintf(", and the budget of all that is kept loaded there is %d MiB", e.Budget>>20)
	} else {
		text += fmt.Sprintf(" and its processes %d MiB more, and %d MiB are free or can be made so", mib(e.Rest), e.Free>>20)
	}
	if e.Busy > 0 {
		text += fmt.Sprintf("; restores are using %d snapshots that are kept loaded there", e.Busy)
	}
	return text
}

// Unwrap gives the kind.
func (e *RoomError) Unwrap() error { return errdefs.ErrResourceExhausted }

// Hint says what to do.
func (e *RoomError) Hint() string {
	if e.Budget > 0 {
		return fmt.Sprintf("raise it to %d MiB at least: --gpu-budget", mib(e.Need))
	}
	return "see with nvidia-smi who uses the GPU's memory, or choose another GPU with --device"
}

// mib rounds up.
func mib(n int64) int64 { return (n + 1<<20 - 1) >> 20 }
