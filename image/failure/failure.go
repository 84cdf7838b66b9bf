package failure

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/containerd/errdefs"
)

// Error is an error with what a user needs to know of it. As JSON it goes from one process to another.
type Error struct {
	Kind    Kind   `json:"kind"`
	Message string `json:"message"`
	Advice  string `json:"hint,omitempty"` // what to do about it
	Rule    string `json:"rule,omitempty"` // that refused what was asked for; empty: none did

	is    error // the kind that New was given; nil: it is Kind, or cause has it
	cause error // nil: none, or it arose in another process
}

// Kind names one of containerd's kinds of errors, or that of a context that has ended.
type Kind string

// Kinds that containerd does not have, each of which wraps one of containerd's.
var (
	// ErrMisfit: a snapshot does not fit this host. FailedPrecondition.
	ErrMisfit = fmt.Errorf("it does not fit this host: %w", errdefs.ErrFailedPrecondition)
	// ErrLost: a checkpoint cost a container its processes. Internal.
	ErrLost = fmt.Errorf("the container is lost: %w", errdefs.ErrInternal)
	// ErrBusy: another checkpoint or restore of the container is under way. FailedPrecondition.
	ErrBusy = fmt.Errorf("another is under way: %w", errdefs.ErrFailedPrecondition)
)

// kinds are all that cross.
var kinds = map[Kind]error{
	"aborted": errdefs.ErrAborted, "already exists": errdefs.ErrAlreadyExists, "busy": ErrBusy, "canceled": context.Canceled, "data loss": errdefs.ErrDataLoss,
	"deadline exceeded":   context.DeadlineExceeded,
	"failed precondition": errdefs.ErrFailedPrecondition, "internal": errdefs.ErrInternal, "invalid argument": errdefs.ErrInvalidArgument, "lost": ErrLost,
	"misfit": ErrMisfit, "not found": errdefs.ErrNotFound, "not implemented": errdefs.ErrNotImplemented, "permission denied": errdefs.ErrPermissionDenied,
	"resource exhausted": errdefs.ErrResourceExhausted, "unauthenticated": errdefs.ErrUnauthenticated, "unavailable": errdefs.ErrUnavailable,
	"unknown": errdefs.ErrUnknown,
}

// maxText bounds a message and advice, bytes, so that a message has room for both.
const maxText = 8 << 10

// New makes an error of a kind, which is one of those that cross, or an error of a package's own that may wrap one of them: [errors.Is] finds it in this process. text is as
// for [fmt.Errorf]. What it wraps with %w can be asked for in this process as well. Neither goes to another process.
func New(kind error, advice, text string, args ...any) *Error {
	message := fmt.Errorf(text, args...)
	e := &Error{Kind: kindName(kind), Message: message.Error(), Advice: advice, is: kind}
	switch message.(type) {
	case interface{ Unwrap() error }, interface{ Unwrap() []error }:
		e.cause = message
	}
	return e
}

// By sets the rule that has refused, and returns e.
func (e *Error) By(rule string) *Error {
	e.Rule = rule
	return e
}

// Of tells of err. Its kind is the first of those given that err has, else the last of them; where none is given, that which [errdefs.Resolve] finds, or
// ResourceExhausted where a disk is full.
func Of(err error, of ...error) *Error {
	e := &Error{Kind: kindName(err), Message: err.Error(), Advice: Hint(err), Rule: Rule(err)}
	for _, kind := range of {
		if e.Kind = name(kind); errors.Is(err, kind) {
			break
		}
	}
	if len(of) == 0 && errors.Is(err, syscall.ENOSPC) && (e.Kind == "unknown" || e.Kind == "aborted") {
		e.Kind = "resource exhausted"
	}
	e.Message, e.Advice = e.Message[:min(len(e.Message), maxText)], e.Advice[:min(len(e.Advice), maxText)]
	return e
}

// KindOf returns the kind of err, or other if it has none.
func KindOf(err, other error) error {
	if kind := errdefs.Resolve(err); kind != errdefs.ErrUnknown {
		return kind
	}
	return other
}

// kindName returns the name of the kind of err.
func kindName(err error) Kind {
	for _, own := range []error{ErrBusy, ErrLost, ErrMisfit} { // before the kinds that they wrap
		if errors.Is(err, own) {
			return name(own)
		}
	}
	return name(errdefs.Resolve(err))
}

func name(kind error) Kind {
	for name, k := range kinds {
		if k == kind {
			return name
		}
	}
	return "unknown"
}

// Doing returns the error with what was being done ahead of its message.
func (e *Error) Doing(what string) *Error {
	doing := *e
	doing.Message = what + ": " + e.Message
	return &doing
}

func (e *Error) Error() string { return e.Message }

// Hint returns what to do.
func (e *Error) Hint() string { return e.Advice }

// ByRule is Rule.
func (e *Error) ByRule() string { return e.Rule }

// Unwrap returns the kind and the cause. A kind that is not known is Internal.
func (e *Error) Unwrap() []error {
	var all []error
	switch known := kinds[e.Kind]; {
	case e.is != nil:
		all = append(all, e.is)
	case e.cause != nil: // which has the kind
	case known != nil:
		all = append(all, known)
	default:
		all = append(all, errdefs.ErrInternal)
	}
	if e.cause != nil {
		all = append(all, e.cause)
	}
	return all
}

// Class is the value by which metrics count an error: the rule that refused, or else the kind. There are few of both.
func Class(err error) string {
	e := Of(err)
	return cmp.Or(e.Rule, string(e.Kind))
}

// Hint returns the first hint in an error's tree; empty if there is none.
func Hint(err error) string {
	return first(err, func(e error) string {
		if h, ok := e.(interface{ Hint() string }); ok {
			return h.Hint()
		}
		return ""
	})
}

// Rule returns the first rule in an error's tree; empty if there is none.
func Rule(err error) string {
	return first(err, func(e error) string {
		if r, ok := e.(interface{ ByRule() string }); ok {
			return r.ByRule()
		}
		return ""
	})
}

// first searches an error's tree for the first error of which says gives a text, and gives that text.
func first(err error, says func(error) string) string {
	if text := says(err); text != "" {
		return text
	}
	switch u := err.(type) {
	case interface{ Unwrap() error }:
		return first(u.Unwrap(), says)
	case interface{ Unwrap() []error }:
		for _, e := range u.Unwrap() {
			if text := first(e, says); text != "" {
				return text
			}
		}
	}
	return ""
}
