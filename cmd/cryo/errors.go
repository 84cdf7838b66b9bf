package main

import (
	"context"
	"errors"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/shim/restore"
)

// misused returns the error that the command line makes no sense. Its kind is InvalidArgument.
func misused(command, problem string, args ...any) *failure.Error {
	return failure.New(errdefs.ErrInvalidArgument, "see "+command+" --help", problem, args...)
}

// errorReport is an error for programs.
type errorReport struct {
	Kind      string `json:"kind"` // of exitTable
	Message   string `json:"message"`
	Hint      string `json:"hint,omitempty"` // what to do
	ExitCode  int    `json:"exitCode"`
	Container string `json:"container,omitempty"` // of which it is
	Left      *left  `json:"left,omitempty"`      // what there is of it after the error; nil if unknown
}

// left is what there is of a container after a checkpoint or restore that did not come about, or not all of it.
type left struct {
	Running  bool   `json:"running"`            // the container runs
	Snapshot string `json:"snapshot,omitempty"` // digest of the snapshot that this command has taken
}

// failedReport is the JSON document of a command that has nothing but an error to say.
type failedReport struct {
	Error *errorReport `json:"error"`
}

// errorReport describes an error, and nothing where there is none.
func (a *app) errorReport(ctx context.Context, err error) *errorReport {
	if err == nil {
		return nil
	}
	err = interrupted(ctx, err)
	as := exitOf(err)
	r := &errorReport{Kind: as.kind, Message: err.Error(), Hint: hintOf(err), ExitCode: as.code}
	var of *restore.JobError
	if errors.As(err, &of) {
		r.Container, r.Left = of.Container, &left{of.Running, of.Snapshot}
	}
	return r
}
