package device

import (
	"errors"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/record"
)

// PieceError adds to err which piece it is about, by its number.
func PieceError(number int, p record.GPUPiece, err error) error {
	return fmt.Errorf("device memory %d, %d bytes on %s: %w", number, p.Size, p.Device, err)
}

// ErrorReport is an error on its way from the keeper: one of the driver, with what was being done, or another.
type ErrorReport struct {
	Driver *UnusableError `json:"driver,omitempty"`
	Call   *CallError     `json:"call,omitempty"`
	Doing  string         `json:"doing,omitempty"` // ahead of the driver's error
	Other  *failure.Error `json:"other,omitempty"`
}

// NewErrorReport makes err a report.
func NewErrorReport(err error) *ErrorReport {
	r := &ErrorReport{}
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

// err returns the error of a report.
func (r *ErrorReport) err() error {
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
