package image

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/cryo-project/cryo/image/failure"
)

// damaged returns the error of a part of a snapshot (manifest, config, or a layer's title) that is not what it was when it was written, or of parts that contradict each other. Its kind is
// DataLoss.
func damaged(part string, d digest.Digest, err error) error {
	return failure.New(errdefs.ErrDataLoss, "the snapshot is damaged; repair it with cryo pull --repair, or take a new one", "read %s (%s): %w", part, d, err)
}

// full returns err with the kind ResourceExhausted if a file system has no room, or no room for this user.
func full(err error) error {
	return noRoom(err, "make room, for instance with cryo rm, or choose another root; the snapshot needs about as much as its memory")
}

func noRoom(err error, hint string) error {
	if errdefs.IsResourceExhausted(err) || !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT) {
		return err
	}
	return failure.New(errdefs.ErrResourceExhausted, hint, "%w", err)
}

// notSnapshot returns the error that something sound is not a snapshot.
func notSnapshot(d digest.Digest, reason string, args ...any) error {
	return failure.New(errdefs.ErrDataLoss, "name something that cryo checkpoint made; a container image is run with ctr or nerdctl",
		"open snapshot %s: it is not a snapshot: %s", d, fmt.Sprintf(reason, args...))
}

// otherVersion returns the error that a snapshot is of a version that this package does not read. what is the manifest, the config or the GPU engine.
func otherVersion(what, got string) error {
	return failure.New(errdefs.ErrNotImplemented, "use the version of cryo that took the snapshot, or a newer one", "open snapshot: its %s is of version %q", what, got)
}

// tooLarge returns the error that a snapshot would need more segments than a manifest can list.
func tooLarge(segments int) error {
	return failure.New(errdefs.ErrInvalidArgument, "choose larger segments", "pack memory: %d segments are more than %d", segments, maxSegments)
}
