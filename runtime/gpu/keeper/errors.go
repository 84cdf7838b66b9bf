package keeper

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/spec"
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

// pieceError says for which piece something failed, by its number.
func pieceError(number int, p spec.GPUPiece, err error) error {
	return fmt.Errorf("device memory %d, %d bytes on %s: %w", number, p.Size, p.Device, err)
}

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

// report is an error on its way from the keeper: one of the driver, with what was being done, or another.
type report struct {
	Driver *driver.UnusableError `json:"driver,omitempty"`
	Call   *CallError            `json:"call,omitempty"`
	Doing  string                `json:"doing,omitempty"` // ahead of the driver's error
	Other  *failure.Error        `json:"other,omitempty"`
}

// newReport tells of err.
func newReport(err error) *report {
	r := &report{}
	switch {
	case errors.As(err, &r.Driver):
		r.Doing = strings.TrimSuffix(err.Error(), r.Driver.Error())
	case errors.As(err, &r.Call):
		r.Doing = strings.TrimSuffix(err.Error(), r.Call.Error())
	default:
		r.Other = failure.Of(err, errdefs.ErrAborted, errdefs.ErrInvalidArgument, errdefs.ErrUnavailable, errdefs.ErrNotFound, errdefs.ErrInternal)
	}
	return r
}

// err is the error that was told of.
func (r *report) err() error {
	switch {
	case r.Driver != nil:
		return fmt.Errorf("%s%w", r.Doing, r.Driver)
	case r.Call != nil:
		return fmt.Errorf("%s%w", r.Doing, r.Call)
	case r.Other != nil:
		return r.Other
	}
	return failure.New(errdefs.ErrInternal, "", "the keeper says nothing of an error")
}
