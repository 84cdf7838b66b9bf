package format

import (
	"fmt"

	"github.com/containerd/errdefs"
)

// Sizes of a segment's window, in bytes.
const (
	DefaultSegmentSize = 256 << 20
	MinSegmentSize     = MaxFrame
	MaxSegmentSize     = 8 << 30 // registries take blobs of 10 GB at least
)

// CheckSegmentSize returns an error unless a window may be of size bytes.
func CheckSegmentSize(size int64) error {
	if size < MinSegmentSize || size > MaxSegmentSize || size&(size-1) != 0 {
		return fmt.Errorf("cut segments: size %d is not a power of two from %d to %d: %w",
			size, int64(MinSegmentSize), int64(MaxSegmentSize), errdefs.ErrInvalidArgument)
	}
	return nil
}

// IsSegment reports whether a window of size bytes makes a segment when so many of its pages were dumped.
func IsSegment(pages, pageSize, size int64) bool { return pages*pageSize >= size/16 }
