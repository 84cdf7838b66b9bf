package keeper

import (
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/spec/failure"
	"github.com/cryo-project/cryo/runtime/gpu/driver"
)

// CallError says that a call of the driver failed. Its kind is Aborted.
type CallError struct {
	Call string `json:"call"` // cuMemImportFromShareableHandle
	Code int    `json:"code"` // CUresult
	Name string `json:"name"` // its name in cuda.h
}

func (e *CallError) Error() string { return fmt.Sprintf("%s: %s (%d)", e.Call, e.Name, e.Code) }

// Hint says where the driver tells more.
func (e *CallError) Hint() string {
	switch e.Code {
	case OutOfMemory:
		return "see with nvidia-smi who uses the GPU's memory"
	case deviceUnavailable:
		return "another process has the GPU to itself: set its compute mode to DEFAULT (nvidia-smi -c DEFAULT)"
	}
	return "see the kernel's log for messages of the driver (NVRM, Xid)"
}

// Unwrap gives the kind.
func (e *CallError) Unwrap() error { return errdefs.ErrAborted }

// Codes of CUresult.
const (
	OutOfMemory       = 2
	deviceUnavailable = 46 // or the device is in an exclusive mode
)

// PieceError says for which piece something failed.
type PieceError struct {
	Number int // of those the call was for, from 0
	Piece
	Err error
}

func (e *PieceError) Error() string {
	return fmt.Sprintf("device memory %d, %d bytes on %s: %v", e.Number, e.Size, e.Device, e.Err)
}

// Unwrap gives the cause.
func (e *PieceError) Unwrap() error { return e.Err }

// HangError says that the keeper did not answer in time, and has been killed. Its kind is Aborted.
type HangError struct {
	Do    string
	After time.Duration
	Died  error // how it ended then, a [driver.DiedError]
}

func (e *HangError) Error() string {
	return fmt.Sprintf("%s: the driver has not answered within %s", e.Do, e.After)
}

// Hint says what to do.
func (e *HangError) Hint() string {
	return "see whether nvidia-smi answers, and the kernel's log for messages of the driver (NVRM, Xid)"
}

// Unwrap gives the keeper's end and the kind.
func (e *HangError) Unwrap() []error {
	if e.Died == nil {
		return []error{errdefs.ErrAborted}
	}
	return []error{e.Died, errdefs.ErrAborted}
}

// report is an error on its way from the keeper.
type report struct {
	Driver *driver.UnusableError `json:"driver,omitempty"`
	Call   *CallError            `json:"call,omitempty"`
	Piece  *numbered             `json:"piece,omitempty"` // that it is about
	Other  *failure.Error        `json:"other,omitempty"`
}

// numbered is a piece and its number.
type numbered struct {
	Number int `json:"number"`
	Piece
}

// newReport tells of err.
func newReport(err error) *report {
	r := &report{}
	var piece *PieceError
	if errors.As(err, &piece) {
		r.Piece, err = &numbered{piece.Number, piece.Piece}, piece.Err
	}
	if errors.As(err, &r.Driver) || errors.As(err, &r.Call) {
		return r
	}
	r.Other = failure.Of(err, errdefs.ErrAborted, errdefs.ErrInvalidArgument, errdefs.ErrUnavailable, errdefs.ErrNotFound, errdefs.ErrInternal)
	return r
}

// err is the error that was told of.
func (r *report) err() (err error) {
	switch {
	case r.Driver != nil:
		err = r.Driver
	case r.Call != nil:
		err = r.Call
	case r.Other != nil:
		err = r.Other
	default:
		err = failure.New(errdefs.ErrInternal, "", "the keeper says nothing of an error")
	}
	if r.Piece != nil {
		err = &PieceError{Number: r.Piece.Number, Piece: r.Piece.Piece, Err: err}
	}
	return err
}
