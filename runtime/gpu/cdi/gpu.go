package cdi

import (
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// HasNVIDIA tells whether a container has NVIDIA's device nodes, or mounts of them.
func HasNVIDIA(spec *specs.Spec) bool { return has(spec, isNVIDIA) }

func isNVIDIA(p string) bool { return strings.HasPrefix(path.Clean(p), "/dev/nvidia") }

// HasAMD tells whether a container has the compute device of AMD GPUs.
func HasAMD(spec *specs.Spec) bool { return has(spec, func(p string) bool { return p == "/dev/kfd" }) }

func has(spec *specs.Spec, is func(path string) bool) bool {
	if spec.Linux != nil {
		for _, d := range spec.Linux.Devices {
			if is(path.Clean(d.Path)) {
				return true
			}
		}
	}
	for _, m := range spec.Mounts {
		if is(path.Clean(m.Destination)) || is(path.Clean(m.Source)) {
			return true
		}
	}
	return false
}

// unit matches nodes that belong to one GPU, or to a part of one; others serve all of them.
var unit = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^/dev/(nvidia[0-9]+|nvidia-caps/.+|nvidia-caps-imex-channels/.+|dri/.+)$`)
})

// Minors lists the NVIDIA GPUs that a container has nodes of, by the numbers in /dev/nvidiaN, ascending.
func Minors(spec *specs.Spec) []int { return edits(spec).Minors() }

// Minors lists the NVIDIA GPUs that the edits bring nodes of, by the numbers in /dev/nvidiaN, ascending.
func (e Edits) Minors() (minors []int) {
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
