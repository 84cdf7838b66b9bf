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

// Kinds of errors of a store.
var (
	// ErrUnknownRef: the store has no such tag or digest. NotFound.
	ErrUnknownRef = fmt.Errorf("no such snapshot: %w", errdefs.ErrNotFound)
	// ErrMissing: a blob is not in the store. NotFound.
	ErrMissing = fmt.Errorf("no such blob: %w", errdefs.ErrNotFound)
	// ErrCorrupt: stored, received or sent bytes are not what they should be. DataLoss.
	ErrCorrupt = fmt.Errorf("it is damaged: %w", errdefs.ErrDataLoss)
	// ErrDiskFull: there is no room under the root. ResourceExhausted.
	ErrDiskFull = fmt.Errorf("the disk is full: %w", errdefs.ErrResourceExhausted)
)

// unknownRef returns the error that the store has no ref. lost: the index was rebuilt from blobs, and some snapshots have a [LostName].
func unknownRef(ref string, lost bool) error {
	hint := "`cryo ls` lists what is there, `cryo pull` fetches from a registry"
	if lost {
		hint = "the index of the store was damaged and its names are lost: `cryo ls` lists the snapshots as " + LostName + ", `cryo inspect` shows what they are of, `cryo tag` names them again"
	}
	return failure.New(ErrUnknownRef, hint, "no snapshot %s in the local store", ref)
}

// missing returns the error that a blob is not in the store. of is what needs it; it may be empty.
func missing(d digest.Digest, of string) error {
	blob := "blob " + d.String()
	if of != "" {
		blob += ", part of " + of + ","
	}
	return failure.New(ErrMissing, "`cryo pull` the snapshot again: only what is missing is fetched", "%s is not in the local store", blob)
}

// Corrupt returns the error that what, a blob or a file, is damaged.
func Corrupt(what string, err error) error {
	return failure.New(ErrCorrupt, "`cryo pull --repair` the snapshot, or take a new one; check the disk and the source it came from", "%s is damaged: %w", what, err)
}

// damagedIndex returns the error that index.json cannot be read, which has the names of all snapshots. Its kind is DataLoss.
func damagedIndex(path string, err error) error {
	return failure.New(errdefs.ErrDataLoss, "the blobs are kept: `cryo prune` rebuilds the file from them; where that fails as well, put a copy of the file back or use another store with --root",
		"%w", Corrupt(path, err))
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

// diskFull returns the error that there is no room under root.
func diskFull(root string, err error) error {
	return failure.New(ErrDiskFull, "see what takes it with `cryo df`, remove snapshots with `cryo rm` and what is not needed with `cryo prune`, or use another file system with --root",
		"no space left under %s: %w", root, err)
}

// mapError adds to errors of the operating system the kind that they have for users.
func mapError(root string, err error) error {
	switch {
	case errors.As(err, new(*failure.Error)): // it has one
		return err
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return diskFull(root, err)
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
