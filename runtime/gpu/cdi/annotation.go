package cdi

import (
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Annotation keeps the names of the CDI devices that were injected into a specification, separated by commas. It is
// cryo's own: annotations of a snapshot with this prefix are dropped, and it says what was done, not what is to be done.
const Annotation = "io.cryo.gpu.devices"

// Annotate notes the devices that were injected, which may be none.
func Annotate(spec *specs.Spec, names []string) {
	if spec.Annotations == nil {
		spec.Annotations = map[string]string{}
	}
	spec.Annotations[Annotation] = strings.Join(names, ",")
}

// Annotated returns the devices noted; false where nothing is noted. The error is that of [Validate].
func Annotated(spec *specs.Spec) (names []string, noted bool, err error) {
	text, noted := spec.Annotations[Annotation]
	if text != "" {
		names = strings.Split(text, ",")
	}
	return names, noted, Validate(names)
}
