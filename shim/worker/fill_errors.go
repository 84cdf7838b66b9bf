package worker

import (
	"errors"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/failure"
)

// ErrFillEnded is the result where [Filling.End] came first.
var ErrFillEnded = errors.New("fill in the container's memory: it was broken off")

// fillDoing is where errors arise.
const fillDoing = "fill in the container's memory"

// aborted is an error of that kind.
func aborted(advice, text string, args ...any) error {
	return failure.New(errdefs.ErrAborted, advice, text, args...).Doing(fillDoing)
}
