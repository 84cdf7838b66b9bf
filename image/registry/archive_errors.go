package registry

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/store"
)

// misspelt returns the error that a location is not written as it should be.
func misspelt(text, reason string) error {
	return failure.New(errdefs.ErrInvalidArgument, "write oci:DIR[:TAG] or oci-archive:FILE[:TAG]", "location %q: %s", text, reason)
}

// unknown returns the error that there is no such directory, file or tag.
func unknown(l location, err error) error {
	return failure.New(errdefs.ErrNotFound, "check the path; an OCI layout holds the files oci-layout and index.json", "open %s: %w", l.text, err)
}

// mapError adds to errors of the operating system the kind that they have for users.
func mapError(l location, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return failure.New(errdefs.ErrResourceExhausted, "make room there or export to another file system; a part of an archive is not kept",
			"no space left for %s: %w", l.path, err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: %w", errdefs.ErrPermissionDenied, err)
	}
	return err
}

// damaged returns what is wrong with a location.
func damaged(l location, err error) error {
	return store.Corrupt(l.text, err)
}
