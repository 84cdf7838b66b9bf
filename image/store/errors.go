package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/cryo-project/cryo/image/failure"
)

// InvalidRef returns the error that a name is not a reference, or not one that can be used.
func InvalidRef(ref string, err error) error {
	return failure.New(errdefs.ErrInvalidArgument, "write it as [HOST[:PORT]/]NAME[:TAG] or NAME@sha256:DIGEST, in lower case, such as registry.example/team/app:1",
		"parse reference %q: %w", ref, err)
}

// UnknownRefError says that the store has no such tag or digest. It is an errdefs.ErrNotFound.
type UnknownRefError struct {
	Ref  string
	Lost bool // the index was rebuilt from blobs, and some snapshots have a [LostName]
}

func (e *UnknownRefError) Error() string {
	return fmt.Sprintf("no snapshot %s in the local store", e.Ref)
}
func (e *UnknownRefError) Unwrap() error { return errdefs.ErrNotFound }

// Hint returns how to find or get it.
func (e *UnknownRefError) Hint() string {
	if e.Lost {
		return "the index of the store was damaged and its names are lost: `cryo ls` lists the snapshots as " + LostName + ", `cryo inspect` shows what they are of, `cryo tag` names them again"
	}
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

// Hint returns how to get it.
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

// Hint returns how to mend it.
func (e *CorruptError) Hint() string {
	return "`cryo pull --repair` the snapshot, or take a new one; check the disk and the source it came from"
}

// damagedIndex returns the error that index.json cannot be read, which has the names of all snapshots. Its kind is DataLoss.
func damagedIndex(path string, err error) error {
	return failure.New(errdefs.ErrDataLoss, "the blobs are kept: `cryo prune` rebuilds the file from them; where that fails as well, put a copy of the file back or use another store with --root",
		"%w", &CorruptError{What: path, Err: err})
}

// notSnapshot returns the error that a manifest is fine and something else than a snapshot.
func notSnapshot(ref, mediaType, artifactType string) error {
	is := mediaType
	switch {
	case artifactType != "":
		is = "an artifact of type " + artifactType
	case IsIndex(mediaType):
		is = fmt.Sprintf("an image for several platforms (%s), none of whose entries is a snapshot", mediaType)
	}
	return failure.New(errdefs.ErrDataLoss, "name a snapshot that `cryo checkpoint` made; images are run with ctr or nerdctl", "%s is not a cryo snapshot but %s", ref, is)
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

// Hint returns how to make room.
func (e *DiskFullError) Hint() string {
	return "see what takes it with `cryo df`, remove snapshots with `cryo rm` and what is not needed with `cryo prune`, or use another file system with --root"
}

// mapError adds to errors of the operating system the kind that they have for users.
func mapError(root string, err error) error {
	switch {
	case errors.As(err, new(*DiskFullError)), errors.As(err, new(*failure.Error)): // it has one
		return err
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return &DiskFullError{Root: root, Err: err}
	case errors.Is(err, syscall.EIO), errors.Is(err, syscall.EROFS):
		return failure.New(errdefs.ErrInternal, "look at the kernel's log (dmesg), mend or replace the disk, or use another with --root", "the disk under %s fails: %w", root, err)
	case errors.Is(err, fs.ErrPermission):
		hint := "run cryo as root (sudo); to look at snapshots and move them, a store of your own will do: --root DIRECTORY"
		if os.Geteuid() == 0 {
			hint = "see who owns " + root + " and whether its file system is mounted for writing"
		}
		return failure.New(errdefs.ErrPermissionDenied, hint, "user %d may not use it: %w", os.Geteuid(), err)
	}
	return err
}
