package arrival

import (
	"context"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/spec/failure"
)

// doing is where errors arise.
const doing = "pull the segments"

// restoreAgain is what to do where they do not come.
const restoreAgain = "restore it again: what has come is kept, and the rest is pulled then"

// failed tells another process of an error.
func failed(err error) *failure.Error {
	f := failure.Of(err, errdefs.ErrDataLoss, context.Canceled, errdefs.ErrUnavailable)
	f.Message = strings.TrimPrefix(f.Message, doing+": ")
	return f
}

// errGone is the error of a client whose server has ended without a word.
var errGone = failure.New(errdefs.ErrUnavailable, restoreAgain, "the process that pulled them has ended").Doing(doing)

// LeftError says that a client has ended without a word. Who sees to that process may know why. Its kind is Aborted.
type LeftError struct {
	Does string // what it did with the segments
}

func (e *LeftError) Error() string {
	return fmt.Sprintf("%s: the process that %s has ended", doing, e.Does)
}

// Hint says what to do.
func (e *LeftError) Hint() string {
	return "restore it again: what has come is kept; look for the reason in the kernel's log if that happens more often (dmesg: out of memory?)"
}

// Unwrap gives the kind.
func (e *LeftError) Unwrap() error { return errdefs.ErrAborted }
