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

// FullError says that a file system has no room, or no room for this user. Its kind is ResourceExhausted.
type FullError struct{ Err error }

func (e *FullError) Error() string { return e.Err.Error() }

// Unwrap gives the kind of the error and its cause, which is syscall.ENOSPC or syscall.EDQUOT.
func (e *FullError) Unwrap() []error { return []error{errdefs.ErrResourceExhausted, e.Err} }

// Hint says what to do next.
func (e *FullError) Hint() string {
	return "make room, for instance with cryo rm, or choose another root; the snapshot needs about as much as its memory"
}

// RoundError says that CRIU takes memory to be as it was in the round before of a pre-dump, which has not brought it. Its kind is Aborted.
type RoundError struct {
	Pagemap string
	Addr    uint64 // of the first page
}

func (e *RoundError) Error() string {
	return fmt.Sprintf("put memory together: the round before has no page at %#x of %s, but CRIU takes it to be there", e.Addr, e.Pagemap)
}

// Unwrap gives the kind of the error.
func (e *RoundError) Unwrap() error { return errdefs.ErrAborted }

// Hint says what to do next.
func (e *RoundError) Hint() string { return "take the snapshot without --pre-dump" }

// full gives the error of a full disk its type.
func full(err error) error {
	var typed *FullError
	if err == nil || errors.As(err, &typed) || !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT) {
		return err
	}
	return &FullError{Err: err}
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
