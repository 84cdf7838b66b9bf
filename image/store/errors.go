package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// InvalidRefError says that a name is not a reference. It is an errdefs.ErrInvalidArgument.
type InvalidRefError struct {
	Ref string
	Err error
}

func (e *InvalidRefError) Error() string   { return fmt.Sprintf("parse reference %q: %v", e.Ref, e.Err) }
func (e *InvalidRefError) Unwrap() []error { return []error{errdefs.ErrInvalidArgument, e.Err} }

// Hint says what a reference looks like.
func (e *InvalidRefError) Hint() string {
	return "write it as [HOST[:PORT]/]NAME[:TAG] or NAME@sha256:DIGEST, in lower case, such as registry.example/team/app:1"
}

// UnknownRefError says that the store has no such tag or digest. It is an errdefs.ErrNotFound.
type UnknownRefError struct {
	Ref string
}

func (e *UnknownRefError) Error() string {
	return fmt.Sprintf("no snapshot %s in the local store", e.Ref)
}
func (e *UnknownRefError) Unwrap() error { return errdefs.ErrNotFound }

// Hint says how to find or get it.
func (e *UnknownRefError) Hint() string {
	return "`cryo ls` lists what is there, `cryo pull` fetches from a registry"
}

// MissingError says that a blob is not in the store. It is an errdefs.ErrNotFound.
type MissingError struct {
	Digest digest.Digest
	Of     string // what needs it, may be empty
}

func (e *MissingError) Error() string {
	if e.Of != "" {
		return fmt.Sprintf("blob %s, part of %s, is not in the local store", e.Digest, e.Of)
	}
	return fmt.Sprintf("blob %s is not in the local store", e.Digest)
}
func (e *MissingError) Unwrap() error { return errdefs.ErrNotFound }

// Hint says how to get it.
func (e *MissingError) Hint() string {
	return "`cryo pull` the snapshot again: only what is missing is fetched"
}

// CorruptError says that stored or received bytes are not what they should be. It is an errdefs.ErrDataLoss.
type CorruptError struct {
	What string // blob or file
	Err  error
}

func (e *CorruptError) Error() string   { return fmt.Sprintf("%s is damaged: %v", e.What, e.Err) }
func (e *CorruptError) Unwrap() []error { return []error{errdefs.ErrDataLoss, e.Err} }

// Hint says how to mend it.
func (e *CorruptError) Hint() string {
	return "`cryo pull --repair` the snapshot, or take a new one; check the disk and the source it came from"
}

// NotSnapshotError says that a manifest is fine and something else than a snapshot. Its kind is DataLoss.
type NotSnapshotError struct {
	Ref          string
	MediaType    string
	ArtifactType string // empty: none
}

func (e *NotSnapshotError) Error() string {
	if e.ArtifactType != "" {
		return fmt.Sprintf("%s is not a cryo snapshot but an artifact of type %s", e.Ref, e.ArtifactType)
	}
	if IsIndex(e.MediaType) {
		return fmt.Sprintf("%s is not a cryo snapshot but an image for several platforms (%s), none of whose entries is a snapshot", e.Ref, e.MediaType)
	}
	return fmt.Sprintf("%s is not a cryo snapshot but %s", e.Ref, e.MediaType)
}
func (e *NotSnapshotError) Unwrap() error { return errdefs.ErrDataLoss }

// Hint says what was expected.
func (e *NotSnapshotError) Hint() string {
	return "name a snapshot that `cryo checkpoint` made; images are run with ctr or nerdctl"
}

// DiskFullError says that there is no room under the root. It is an errdefs.ErrResourceExhausted.
type DiskFullError struct {
	Root string
	Err  error
}

func (e *DiskFullError) Error() string {
	return fmt.Sprintf("no space left under %s: %v", e.Root, e.Err)
}
func (e *DiskFullError) Unwrap() []error { return []error{errdefs.ErrResourceExhausted, e.Err} }

// Hint says how to make room.
func (e *DiskFullError) Hint() string {
	return "see what takes it with `cryo df`, remove snapshots with `cryo rm` and what nobody needs with `cryo prune`, or use another file system with --root"
}

// DiskError says that the disk under the root does not do what it shall. It is an errdefs.ErrInternal.
type DiskError struct {
	Root string
	Err  error
}

func (e *DiskError) Error() string   { return fmt.Sprintf("the disk under %s fails: %v", e.Root, e.Err) }
func (e *DiskError) Unwrap() []error { return []error{errdefs.ErrInternal, e.Err} }

// Hint says where to look.
func (e *DiskError) Hint() string {
	return "look at the kernel's log (dmesg), mend or replace the disk, or use another with --root"
}

// RightsError says that this user may not read or write files under the root. It is an errdefs.ErrPermissionDenied.
type RightsError struct {
	Root string
	User int
	Err  error
}

func (e *RightsError) Error() string {
	return fmt.Sprintf("user %d may not use it: %v", e.User, e.Err)
}
func (e *RightsError) Unwrap() []error { return []error{errdefs.ErrPermissionDenied, e.Err} }

// Hint says who may.
func (e *RightsError) Hint() string {
	if e.User == 0 {
		return "see who owns " + e.Root + " and whether its file system is mounted for writing"
	}
	return "run cryo as root (sudo); to look at snapshots and move them, a store of your own will do: --root DIRECTORY"
}

// mapError gives errors of the operating system the kind that they have for users.
func mapError(root string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		if d := (*DiskFullError)(nil); errors.As(err, &d) {
			return err
		}
		return &DiskFullError{Root: root, Err: err}
	case errors.Is(err, syscall.EIO), errors.Is(err, syscall.EROFS):
		if d := (*DiskError)(nil); errors.As(err, &d) {
			return err
		}
		return &DiskError{Root: root, Err: err}
	case errors.Is(err, fs.ErrPermission):
		if d := (*RightsError)(nil); errors.As(err, &d) {
			return err
		}
		return &RightsError{Root: root, User: os.Geteuid(), Err: err}
	}
	return err
}
