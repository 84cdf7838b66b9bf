package main

import (
	"context"
	"errors"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/spec/failure"
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

// exitTable documents the codes; `cryo help exit-codes` prints it.
var exitTable = []struct {
	code    int
	kind    string // in JSON; empty: no error
	meaning string
}{
	{exitOK, "", "done"},
	{exitOther, "other", "an error of no other kind"},
	{exitUsage, "usage", "wrong usage, or an invalid argument or configuration"},
	{exitNotFound, "not-found", "no such container, snapshot, tag or file"},
	{exitPrecondition, "precondition", "the container is not running or busy, or this host lacks something (cryo doctor tells what)"},
	{exitExists, "exists", "the name is taken"},
	{exitUnavailable, "unavailable", "the registry or containerd cannot be reached, or the restore process has died; the message says whether a container was ended"},
	{exitDenied, "denied", "not root, wrong or missing credentials, the snapshot asks for what --allow has not granted, or no trusted key has signed it"},
	{exitDamaged, "damaged", "the snapshot is damaged, or is no snapshot"},
	{exitMisfit, "misfit", "the snapshot does not fit this host (cryo inspect --check tells why)"},
	{exitFull, "full", "no space left"},
	{exitAborted, "aborted", "the checkpoint or restore failed; the container is as it was before"},
	{exitLost, "lost", "the container was lost in the checkpoint; the hint says which snapshot of it exists"},
	{exitUnsupported, "unsupported", "not supported"},
	{exitDeadline, "deadline", "it took too long"},
	{exitInterrupted, "interrupted", "interrupted (Ctrl-C); what was done is undone, unless the hint says what is kept"},
}

// errInterrupted is the cause of a context that a signal cancelled.
var errInterrupted = errors.New("interrupted")

// interrupted gives errInterrupted its place in an error that came about because a signal cancelled ctx.
func interrupted(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), errInterrupted) && !errors.Is(err, errInterrupted) &&
		(errors.Is(err, context.Canceled) || errdefs.IsCanceled(err)) {
		return &interruptedError{err: err}
	}
	return err
}

// exitCode maps an error to an exit code, by its type first and then by its errdefs kind.
func exitCode(err error) int {
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, failure.ErrLost):
		return exitLost
	case errors.Is(err, errInterrupted):
		return exitInterrupted
	case errors.Is(err, failure.ErrMisfit):
		return exitMisfit
	case errors.Is(err, unix.ENOSPC), errdefs.IsResourceExhausted(err):
		return exitFull
	}
	for _, kind := range []struct {
		is   func(error) bool
		code int
	}{
		{errdefs.IsDataLoss, exitDamaged},
		{errdefs.IsPermissionDenied, exitDenied},
		{errdefs.IsUnauthorized, exitDenied},
		{errdefs.IsInvalidArgument, exitUsage},
		{errdefs.IsAlreadyExists, exitExists},
		{errdefs.IsNotFound, exitNotFound},
		{errdefs.IsFailedPrecondition, exitPrecondition},
		{errdefs.IsUnavailable, exitUnavailable},
		{errdefs.IsNotImplemented, exitUnsupported},
		{errdefs.IsDeadlineExceeded, exitDeadline},
		{errdefs.IsAborted, exitAborted},
	} {
		if kind.is(err) {
			return kind.code
		}
	}
	return exitOther
}
