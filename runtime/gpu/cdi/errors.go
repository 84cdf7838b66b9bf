package cdi

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
)

// NameError says that a name is not one of a CDI device. Its kind is InvalidArgument.
type NameError struct{ Name, Reason string }

func (e *NameError) Error() string { return fmt.Sprintf("CDI device %q: %s", e.Name, e.Reason) }

// Hint shows what a name looks like.
func (e *NameError) Hint() string {
	return "names look like nvidia.com/gpu=0; nvidia-ctk cdi list shows those of a host"
}

// Is makes the error one of kind InvalidArgument.
func (e *NameError) Is(target error) bool { return target == errdefs.ErrInvalidArgument }

// NoDeviceError says that this host has no CDI devices of these names. Its kind is FailedPrecondition.
type NoDeviceError struct {
	Names []string
	Have  []string         // devices that there are
	Dirs  []string         // where CDI files were looked for
	Files map[string]error // those that cannot be used
}

func (e *NoDeviceError) Error() string {
	text := "this host has no CDI device " + strings.Join(e.Names, ", ")
	for _, file := range slices.Sorted(maps.Keys(e.Files)) {
		text += fmt.Sprintf("; %s defines nothing: %v", file, e.Files[file])
	}
	return text
}

// Hint says how to make it, or which others there are.
func (e *NoDeviceError) Hint() string {
	if len(e.Have) == 0 || len(e.Files) > 0 {
		return "describe this host's GPUs: nvidia-ctk cdi generate --output=" + e.Dirs[0] + "/nvidia.yaml"
	}
	const most = 16
	have := e.Have[:min(most, len(e.Have))]
	return "name one of this host's with --device: " + strings.Join(have, ", ")
}

// Is makes the error one of kind FailedPrecondition.
func (e *NoDeviceError) Is(target error) bool { return target == errdefs.ErrFailedPrecondition }

// BrokenError says that a CDI file promises what this host does not have, such as a device node. Its kind is FailedPrecondition.
type BrokenError struct {
	Names []string
	Err   error
}

func (e *BrokenError) Error() string {
	return fmt.Sprintf("inject CDI device %s: %v", strings.Join(e.Names, ", "), e.Err)
}

// Hint says how to bring the files up to date.
func (e *BrokenError) Hint() string {
	return "the CDI file is older than the host's drivers, most likely: write it anew with nvidia-ctk cdi generate"
}

// Unwrap gives the cause.
func (e *BrokenError) Unwrap() error { return e.Err }

// Is makes the error one of kind FailedPrecondition.
func (e *BrokenError) Is(target error) bool { return target == errdefs.ErrFailedPrecondition }
