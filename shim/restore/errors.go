package restore

import (
	"fmt"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/failure"
)

// Wrong is the error of what was asked for and makes no sense for the snapshot. Its kind is InvalidArgument.
func Wrong(format string, args ...any) error {
	return failure.New(errdefs.ErrInvalidArgument, "see cryo restore --help", format, args...)
}

// Full gives an error that means a full disk the kind ResourceExhausted. dir is where there is no room.
func Full(dir string, err error) error {
	if !noSpace(err) {
		return err
	}
	return NoRoom(dir, err)
}

// NoRoom returns the error that something has failed since there is no room in dir. Its kind is ResourceExhausted.
func NoRoom(dir string, err error) error {
	if !noSpace(err) {
		err = fmt.Errorf("%w: no space left under %s", err, dir)
	}
	return failure.New(errdefs.ErrResourceExhausted, "make room under "+dir+" (a checkpoint needs the container's memory twice for a while), or use another place with --root", "%w", err)
}

// noSpace reports whether an error says, as the C library does, that a disk is full.
func noSpace(err error) bool {
	return strings.Contains(strings.ToLower(err.Error()), "no space left on device")
}

// cutOff returns the error that not all of a snapshot came while its container was being restored, or while it ran. The shim has ended the container if it lacked memory: whole tells
// that it had all of its memory by then, and runs on. The error's kind is that of its cause.
func cutOff(name string, ran, whole bool, err error) error {
	text := "restore %s: its memory did not all come: %w"
	hint := "what was pulled is kept: restore it again"
	switch {
	case whole:
		text = "%s runs and has all its memory, but not all of the snapshot is in the local store: %w"
		hint = "what was pulled is kept: fetch the rest with cryo pull"
	case ran:
		text = "restore %s: it ran, and was ended, since its memory did not all come: %w"
		hint = "what was pulled is kept: remove the container, and restore it again, with --pull-first to have it run when all is here"
	}
	if errdefs.IsResourceExhausted(err) { // what was pulled has made room
		hint = failure.Hint(err)
	} else if more := failure.Hint(err); more != "" {
		hint = more + "\n" + hint
	}
	return failure.New(errdefs.Resolve(err), hint, text, name, err)
}
