package main

import (
	"strings"

	"github.com/containerd/errdefs"
)

// usageError says that the command line makes no sense. Its kind is InvalidArgument.
type usageError struct {
	command     string
	problem     string
	suggestions []string
}

func (e *usageError) Error() string { return e.problem }

func (e *usageError) Hint() string {
	if len(e.suggestions) > 0 {
		return "did you mean " + strings.Join(e.suggestions, " or ") + "?"
	}
	return "see " + e.command + " --help"
}

func (e *usageError) Is(target error) bool { return target == errdefs.ErrInvalidArgument }

// interruptedError says that a signal ended the work.
type interruptedError struct{ err error }

func (e *interruptedError) Error() string { return "interrupted: " + e.err.Error() }

func (e *interruptedError) Unwrap() []error { return []error{errInterrupted, e.err} }
