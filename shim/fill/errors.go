package fill

import (
	"errors"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/spec/failure"
)

// ErrEnded is the result where [Filling.End] came first.
var ErrEnded = errors.New("fill in the container's memory: it was broken off")

// doing is where errors arise.
const doing = "fill in the container's memory"

// aborted is an error of that kind.
func aborted(advice, text string, args ...any) error {
	return failure.New(errdefs.ErrAborted, advice, text, args...).Doing(doing)
}

// died is the error of a server that has said nothing.
var died = aborted("restore it again; look for the reason in the kernel's log if that happens more often (dmesg: out of memory?), and see cryo restore --eager",
	"the restore process has ended")
