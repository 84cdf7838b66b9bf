package image

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/cryo-project/cryo/image/spec/failure"
)

// DamagedError says that a part of a snapshot is not what it was when it was written, or that its parts contradict each
// other. Its kind is DataLoss.
type DamagedError struct {
	Part   string // manifest, config, or a layer's title
	Digest digest.Digest
	Err    error
}

func (e *DamagedError) Error() string {
	return fmt.Sprintf("read %s (%s): %v", e.Part, e.Digest, e.Err)
}

// Unwrap gives the kind of the error and its cause.
func (e *DamagedError) Unwrap() []error { return []error{errdefs.ErrDataLoss, e.Err} }

// Hint says what to do next.
func (e *DamagedError) Hint() string {
	return "the snapshot is damaged; repair it with cryo pull --repair, or take a new one"
}

// roundError says that CRIU takes memory to be as it was in the round before of a pre-dump, which has not brought it. addr is that of the first page.
func roundError(pagemap string, addr uint64) error {
	return failure.New(errdefs.ErrAborted, "take the snapshot without --pre-dump",
		"put memory together: the round before has no page at %#x of %s, but CRIU takes it to be there", addr, pagemap)
}

// full gives the error of a file system that has no room, or no room for this user, its kind.
func full(err error) error {
	if errdefs.IsResourceExhausted(err) || !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT) {
		return err
	}
	return failure.New(errdefs.ErrResourceExhausted, "make room, for instance with cryo rm, or choose another root; the snapshot needs about as much as its memory", "%w", err)
}

// notSnapshot says that something sound is not a snapshot.
func notSnapshot(d digest.Digest, reason string, args ...any) error {
	return failure.New(errdefs.ErrDataLoss, "name something that cryo checkpoint made; a container image is run with ctr or nerdctl",
		"open snapshot %s: it is not a snapshot: %s", d, fmt.Sprintf(reason, args...))
}

// otherVersion says that a snapshot is of a version that this package does not read. what is the manifest, the config or the GPU engine.
func otherVersion(what, got string) error {
	return failure.New(errdefs.ErrNotImplemented, "use the version of cryo that took the snapshot, or a newer one", "open snapshot: its %s is of version %q", what, got)
}

// tooLarge says that a snapshot would need more segments than a manifest can list.
func tooLarge(segments int) error {
	return failure.New(errdefs.ErrInvalidArgument, "choose larger segments", "pack memory: %d segments are more than %d", segments, maxSegments)
}
