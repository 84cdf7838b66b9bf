package segment

import (
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/index"
)

// Sizes of a segment's window, in bytes.
const (
	DefaultSize = 256 << 20
	MinSize     = index.MaxFrame
	MaxSize     = 8 << 30 // registries take blobs of 10 GB at least
)

// CheckSize returns an error unless a window may be of size bytes.
func CheckSize(size int64) error {
	if size < MinSize || size > MaxSize || size&(size-1) != 0 {
		return fmt.Errorf("cut segments: size %d is not a power of two from %d to %d: %w",
			size, int64(MinSize), int64(MaxSize), errdefs.ErrInvalidArgument)
	}
	return nil
}

// Alone reports whether a window of size bytes makes a segment when so many of its pages were dumped.
func Alone(pages, pageSize, size int64) bool { return pages*pageSize >= size/16 }
