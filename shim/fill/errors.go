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
