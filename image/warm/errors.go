package warm

import (
	"fmt"

	"github.com/containerd/errdefs"
)

// BudgetError says that a snapshot alone is larger than the budget. Its kind is ResourceExhausted.
type BudgetError struct {
	What         string // memory or disk
	Need, Budget int64  // bytes
}

func (e *BudgetError) Error() string {
	return fmt.Sprintf("prewarm: the snapshot needs %d MiB of %s, and the budget of all prewarmed snapshots is %d MiB", mib(e.Need), e.What, e.Budget>>20)
}

// Unwrap gives the kind.
func (e *BudgetError) Unwrap() error { return errdefs.ErrResourceExhausted }

// Hint says what to do.
func (e *BudgetError) Hint() string {
	return fmt.Sprintf("raise it to %d MiB at least: --%s, or %[2]s under [prewarm] in the configuration", mib(e.Need), e.What)
}

// mib rounds up.
func mib(n int64) int64 { return (n + 1<<20 - 1) >> 20 }

// BusyError says that restores use so many of the prewarmed snapshots that there is no room. Its kind is ResourceExhausted.
type BusyError struct{ Snapshots int }

func (e *BusyError) Error() string {
	return fmt.Sprintf("prewarm: there is no room within the budget, since restores use %d of the prewarmed snapshots", e.Snapshots)
}

// Unwrap gives the kind.
func (e *BusyError) Unwrap() error { return errdefs.ErrResourceExhausted }

// Hint says what to do.
func (e *BusyError) Hint() string {
	return "try again when their memory is there, or raise the budget: --memory, --disk"
}

// ShortError says that the machine has not so much memory free. Its kind is ResourceExhausted.
type ShortError struct{ Need, Free int64 }

func (e *ShortError) Error() string {
	return fmt.Sprintf("prewarm: the snapshot needs %d MiB of memory, and this machine has %d MiB available", mib(e.Need), e.Free>>20)
}

// Unwrap gives the kind.
func (e *ShortError) Unwrap() error { return errdefs.ErrResourceExhausted }

// Hint says what to do.
func (e *ShortError) Hint() string {
	return "free memory, for instance with cryo prewarm rm, or restore without prewarming"
}

// NotWarmError says that no such snapshot is prewarmed. Its kind is NotFound.
type NotWarmError struct{ Name string }

func (e *NotWarmError) Error() string { return fmt.Sprintf("%s is not prewarmed", e.Name) }

// Unwrap gives the kind.
func (e *NotWarmError) Unwrap() error { return errdefs.ErrNotFound }

// Hint says what to do.
func (e *NotWarmError) Hint() string { return "list what is with cryo prewarm ls" }
