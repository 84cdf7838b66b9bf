package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/failure"
)

// Exit codes. They are part of the command line's interface: see exitTable, which is what users read.
const (
	exitOK           = 0
	exitOther        = 1
	exitUsage        = 2
	exitNotFound     = 3
	exitPrecondition = 4
	exitExists       = 5
	exitUnavailable  = 6
	exitDenied       = 7
	exitDamaged      = 8
	exitMisfit       = 9
	exitFull         = 10
	exitAborted      = 11
	exitLost         = 12
	exitUnsupported  = 13
	exitDeadline     = 124
	exitInterrupted  = 130
)

// exit is how the program ends.
type exit struct {
	code    int
	kind    string // in JSON; empty: no error
	meaning string
	is      func(error) bool
}

// exitTable documents the codes; `cryo help exit-codes` prints it. Of an error to which more than one row applies, the first one counts.
var exitTable = []exit{
	{exitLost, "lost", "the container was lost in the checkpoint; the hint says which snapshot of it exists", is(failure.ErrLost)},
	{exitInterrupted, "interrupted", "interrupted (Ctrl-C); what was done is undone, unless the hint says what is kept", is(errInterrupted)},
	{exitMisfit, "misfit", "the snapshot does not fit this host (cryo inspect --check tells why)", is(failure.ErrMisfit)},
	{exitFull, "full", "no space left", either(is(unix.ENOSPC), errdefs.IsResourceExhausted)},
	{exitDamaged, "damaged", "the snapshot is damaged, or is no snapshot", errdefs.IsDataLoss},
	{exitDenied, "denied", "not root, wrong or missing credentials, the snapshot asks for what --allow has not granted, or no trusted key has signed it", either(errdefs.IsPermissionDenied, errdefs.IsUnauthorized)},
	{exitUsage, "usage", "wrong usage, or an invalid argument or configuration", errdefs.IsInvalidArgument},
	{exitExists, "exists", "the name is taken", errdefs.IsAlreadyExists},
	{exitNotFound, "not-found", "no such container, snapshot, tag or file", errdefs.IsNotFound},
	{exitPrecondition, "precondition", "the container is not running or busy, a rule refuses it, or this host lacks something (cryo doctor tells what)", errdefs.IsFailedPrecondition},
	{exitUnavailable, "unavailable", "the registry or containerd cannot be reached, or the restore process has died; the message says whether a container was ended", errdefs.IsUnavailable},
	{exitUnsupported, "unsupported", "not supported", errdefs.IsNotImplemented},
	{exitDeadline, "deadline", "it took too long", errdefs.IsDeadlineExceeded},
	{exitAborted, "aborted", "the checkpoint or restore failed; the container is as it was before", errdefs.IsAborted},
	{exitOther, "other", "an error of no other kind", func(err error) bool { return err != nil }},
	{exitOK, "", "done; of checkpoint and restore also where only the result could not be printed, as a warning says then", is(nil)},
}

// errInterrupted is the cause of a context that a signal cancelled.
var errInterrupted = errors.New("interrupted")

func is(target error) func(error) bool {
	return func(err error) bool { return errors.Is(err, target) }
}

func either(one, other func(error) bool) func(error) bool {
	return func(err error) bool { return one(err) || other(err) }
}

// interrupted puts errInterrupted in an error that came about because a signal cancelled ctx.
func interrupted(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), errInterrupted) && !errors.Is(err, errInterrupted) &&
		(errors.Is(err, context.Canceled) || errdefs.IsCanceled(err)) {
		return fmt.Errorf("%w: %w", errInterrupted, err)
	}
	return err
}

// exitOf finds how the program ends with an error, or without one.
func exitOf(err error) exit {
	return exitTable[slices.IndexFunc(exitTable, func(e exit) bool { return e.is(err) })]
}
