package segment

import (
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/index"
)

// FrameError says that a frame does not verify. Its kind is DataLoss.
type FrameError struct {
	Segment int
	Offset  int64 // in the segment, bytes
	Reason  string
}

func (e *FrameError) Error() string {
	return fmt.Sprintf("decode frame at %d of segment %d: it %s", e.Offset, e.Segment, e.Reason)
}

// Unwrap gives the kind of the error.
func (e *FrameError) Unwrap() error { return errdefs.ErrDataLoss }

// Hint says what to do next.
func (e *FrameError) Hint() string {
	return "the snapshot's memory is damaged; repair it with cryo pull --repair, or take a new one"
}

func frameError(f *index.Frame, format string, args ...any) error {
	return &FrameError{Segment: f.Segment, Offset: f.Offset, Reason: fmt.Sprintf(format, args...)}
}
