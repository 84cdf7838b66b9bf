package gpu

import (
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// HasNVIDIA reports whether a container has NVIDIA's device nodes, or mounts of them.
func HasNVIDIA(spec *specs.Spec) bool {
	return spec.Linux != nil && slices.ContainsFunc(spec.Linux.Devices, func(d specs.LinuxDevice) bool { return isNVIDIA(d.Path) }) ||
		slices.ContainsFunc(spec.Mounts, func(m specs.Mount) bool { return isNVIDIA(m.Destination) || isNVIDIA(m.Source) })
}

func isNVIDIA(p string) bool { return strings.HasPrefix(path.Clean(p), "/dev/nvidia") }

// deviceUnit matches nodes that belong to one GPU, or to a part of one; others serve all of them.
var deviceUnit = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^/dev/(nvidia[0-9]+|nvidia-caps/.+|nvidia-caps-imex-channels/.+|dri/.+)$`)
})

// DeviceMinors lists the NVIDIA GPUs that a container has nodes of, by the numbers in /dev/nvidiaN, ascending.
func DeviceMinors(spec *specs.Spec) []int { return edits(spec).Minors() }

// Minors lists the NVIDIA GPUs that the edits bring nodes of, by the numbers in /dev/nvidiaN, ascending.
func (e CDIEdits) Minors() (minors []int) {
	var paths []string
	for _, d := range e.Devices {
		paths = append(paths, d.Path)
	}
	for _, m := range e.Mounts {
		paths = append(paths, m.Destination)
	}
	for _, p := range paths {
		number, ok := strings.CutPrefix(path.Clean(p), "/dev/nvidia")
		if n, err := strconv.ParseUint(number, 10, 20); ok && err == nil {
			minors = append(minors, int(n))
		}
	}
	slices.Sort(minors)
	return slices.Compact(minors)
}
