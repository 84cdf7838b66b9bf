package cryo

import (
	"cmp"

	"github.com/cryo-project/cryo/image/failure"
)

// Kinds of errors that errdefs does not have.
var (
	// ErrMisfit: a snapshot does not fit this host. It wraps errdefs.ErrFailedPrecondition. containerd's client loses it: there, only that is left.
	ErrMisfit = failure.ErrMisfit
	// ErrLost: a checkpoint cost a container its processes. It wraps errdefs.ErrInternal.
	ErrLost = failure.ErrLost
	// ErrBusy: another checkpoint or restore of the container is under way. It wraps errdefs.ErrFailedPrecondition.
	ErrBusy = failure.ErrBusy
)

// Rule returns the name of the rule that refused what was asked for, such as "signature"; empty if none did. err is of this package or of containerd's client.
func Rule(err error) string {
	if err == nil {
		return ""
	}
	return cmp.Or(failure.Rule(err), failure.Passed(err).Rule)
}

// Hint returns what to do about an error, for people; empty if that is unknown. err is of this package or of containerd's client.
func Hint(err error) string {
	if err == nil {
		return ""
	}
	return cmp.Or(failure.Hint(err), failure.Passed(err).Advice)
}
