package gpu

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/failure"
)

// nameError returns the error that a name is not one of a CDI device.
func nameError(name, reason string) error {
	return failure.New(errdefs.ErrInvalidArgument, "names look like nvidia.com/gpu=0; nvidia-ctk cdi list shows those of a host", "CDI device %q: %s", name, reason)
}

// noDeviceError returns the error that this host has no CDI devices of these names.
func (h *CDI) noDeviceError(names []string) error {
	text := "this host has no CDI device " + strings.Join(names, ", ")
	damaged := h.damaged()
	for _, file := range slices.Sorted(maps.Keys(damaged)) {
		text += fmt.Sprintf("; %s defines nothing: %v", file, damaged[file])
	}
	have := h.Names()
	hint := "describe this host's GPUs: nvidia-ctk cdi generate --output=" + h.dirs[0] + "/nvidia.yaml"
	if len(have) > 0 && len(damaged) == 0 {
		const most = 16
		hint = "name one of this host's with --device: " + strings.Join(have[:min(most, len(have))], ", ")
	}
	return failure.New(errdefs.ErrFailedPrecondition, hint, "%s", text)
}

// brokenError returns the error that a CDI file promises what this host does not have, such as a device node.
func brokenError(names []string, err error) error {
	return failure.New(errdefs.ErrFailedPrecondition, "the CDI file is older than the host's drivers, most likely: write it anew with nvidia-ctk cdi generate",
		"inject CDI device %s: %w", strings.Join(names, ", "), err)
}
