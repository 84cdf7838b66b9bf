package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/spec/failure"
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

// nameTakenError says that a container of this name exists. Its kind is AlreadyExists.
type nameTakenError struct{ name, namespace string }

func (e *nameTakenError) Error() string {
	return fmt.Sprintf("restore as %s: containerd's namespace %s has a container of this name", e.name, e.namespace)
}

func (e *nameTakenError) Hint() string { return "choose another with --name, or remove that one first" }

func (e *nameTakenError) Is(target error) bool { return target == errdefs.ErrAlreadyExists }

// failedError says that a restore did not come about and that all is as before. Its kind is its cause's, else Aborted.
type failedError struct {
	op, name string
	err      error
}

func (e *failedError) Error() string {
	text := e.err.Error()
	if strings.HasPrefix(text, e.op+" ") {
		return text // the cause says it already
	}
	return fmt.Sprintf("%s %s: %s", e.op, e.name, text)
}

func (e *failedError) Hint() string {
	switch {
	case failure.Hint(e.err) != "", errors.Is(e.err, errInterrupted), errors.Is(e.err, context.Canceled):
		return "" // it is found there, or not needed
	case errdefs.IsUnavailable(e.err):
		return "see that containerd runs, and try again"
	}
	return "try again; containerd's log tells more"
}

func (e *failedError) Unwrap() error { return e.err }

func (e *failedError) left() (string, left) { return e.name, left{} }

func (e *failedError) Is(target error) bool {
	return target == errdefs.ErrAborted && errors.Is(errdefs.Resolve(e.err), errdefs.ErrUnknown)
}

// interruptedError says that a signal ended the work.
type interruptedError struct{ err error }

func (e *interruptedError) Error() string { return "interrupted: " + e.err.Error() }

func (e *interruptedError) Unwrap() []error { return []error{errInterrupted, e.err} }
