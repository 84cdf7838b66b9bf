package restore

import (
	"fmt"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/spec/failure"
)

// Wrong is the error of what was asked for and makes no sense for the snapshot. Its kind is InvalidArgument.
func Wrong(format string, args ...any) error {
	return failure.New(errdefs.ErrInvalidArgument, "see cryo restore --help", format, args...)
}

// ImagesError says that a snapshot's images cannot be used for the container. Its kind is its cause's.
type ImagesError struct {
	Name string // of the container
	Err  error
}

func (e *ImagesError) Error() string { return e.Err.Error() }

// Unwrap gives the cause.
func (e *ImagesError) Unwrap() error { return e.Err }

// FullError says that CRIU found no space for its images. Its kind is ResourceExhausted.
type FullError struct {
	Dir string
	Err error
}

func (e *FullError) Error() string {
	if text := e.Err.Error(); noSpace(text) {
		return text
	}
	return fmt.Sprintf("%v: no space left under %s", e.Err, e.Dir)
}

// Hint says what to do.
func (e *FullError) Hint() string {
	return "make room under " + e.Dir + " (a checkpoint needs the container's memory twice for a while), or use another place with --root"
}

// Unwrap gives the cause.
func (e *FullError) Unwrap() error { return e.Err }

// Is gives the kind.
func (e *FullError) Is(target error) bool { return target == errdefs.ErrResourceExhausted }

// Full gives an error that means a full disk its type. dir is where there is no room.
func Full(dir string, err error) error {
	if noSpace(err.Error()) {
		return &FullError{Dir: dir, Err: err}
	}
	return err
}

// noSpace tells whether text says, as the C library does, that a disk is full.
func noSpace(text string) bool {
	return strings.Contains(strings.ToLower(text), "no space left on device")
}

// CutOffError says that not all of a snapshot came while its container was being restored, or while it ran. The shim has ended the container if it lacked memory. The
// error's kind is that of its cause.
type CutOffError struct {
	Name  string
	Ran   bool
	Whole bool // the container had all of its memory by then, and runs on
	Err   error
}

func (e *CutOffError) Error() string {
	if e.Whole {
		return fmt.Sprintf("%s runs and has all its memory, but not all of the snapshot is in the local store: %v", e.Name, e.Err)
	}
	ran := ""
	if e.Ran {
		ran = "it ran, and was ended, since "
	}
	return fmt.Sprintf("restore %s: %sits memory did not all come: %v", e.Name, ran, e.Err)
}

// Hint says what to do.
func (e *CutOffError) Hint() string {
	if errdefs.IsResourceExhausted(e.Err) {
		return failure.Hint(e.Err) // what was pulled has made room
	}
	hint := "what was pulled is kept: restore it again"
	switch {
	case e.Whole:
		hint = "what was pulled is kept: fetch the rest with cryo pull"
	case e.Ran:
		hint = "what was pulled is kept: remove the container, and restore it again, with --pull-first to have it run when all is here"
	}
	if more := failure.Hint(e.Err); more != "" {
		hint = more + "\n" + hint
	}
	return hint
}

// Unwrap gives the cause.
func (e *CutOffError) Unwrap() error { return e.Err }
