package archive

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/spec/failure"
	"github.com/cryo-project/cryo/image/store"
)

// misspelt says that a location is not written as it should be.
func misspelt(text, reason string) error {
	return failure.New(errdefs.ErrInvalidArgument, "write oci:DIR[:TAG] or oci-archive:FILE[:TAG]", "location %q: %s", text, reason)
}

// UnknownLocationError says that there is no such directory, file or tag. It is an errdefs.ErrNotFound.
type UnknownLocationError struct {
	Location string
	Tags     []string // what there is instead
	Err      error
}

func (e *UnknownLocationError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("open %s: %v", e.Location, e.Err)
	}
	return fmt.Sprintf("%s: no such tag", e.Location)
}

// Unwrap gives the kind and the cause.
func (e *UnknownLocationError) Unwrap() []error {
	if e.Err == nil {
		return []error{errdefs.ErrNotFound}
	}
	return []error{errdefs.ErrNotFound, e.Err}
}

// Hint lists what is there.
func (e *UnknownLocationError) Hint() string {
	if len(e.Tags) == 0 {
		return "check the path; an OCI layout holds the files oci-layout and index.json"
	}
	return "it holds " + strings.Join(e.Tags[:min(len(e.Tags), 20)], ", ")
}

// mapError gives errors of the operating system the kind that they have for users.
func mapError(l location, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return &FullError{Path: l.path, Err: err}
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: %w", errdefs.ErrPermissionDenied, err)
	}
	return err
}

// FullError says that there is no room where a snapshot is to be exported to. It is an errdefs.ErrResourceExhausted.
type FullError struct {
	Path string
	Err  error
}

func (e *FullError) Error() string   { return fmt.Sprintf("no space left for %s: %v", e.Path, e.Err) }
func (e *FullError) Unwrap() []error { return []error{errdefs.ErrResourceExhausted, e.Err} }

// Hint says what to do.
func (e *FullError) Hint() string {
	return "make room there or export to another file system; a part of an archive is not kept"
}

// damaged says what is wrong with a location.
func damaged(l location, err error) error {
	return &store.CorruptError{What: l.text, Err: err}
}
