package gpu

import (
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// DevicesAnnotation keeps the names of the CDI devices that were injected into a specification, separated by commas. It is
// cryo's own: annotations of a snapshot with this prefix are dropped, and it says what was done, not what is to be done.
const DevicesAnnotation = "io.cryo.gpu.devices"

// AnnotateDevices notes the devices that were injected, which may be none.
func AnnotateDevices(spec *specs.Spec, names []string) {
	if spec.Annotations == nil {
		spec.Annotations = map[string]string{}
	}
	spec.Annotations[DevicesAnnotation] = strings.Join(names, ",")
}

// AnnotatedDevices returns the devices noted; false where nothing is noted. The error is that of [ValidateDevices].
func AnnotatedDevices(spec *specs.Spec) (names []string, noted bool, err error) {
	text, noted := spec.Annotations[DevicesAnnotation]
	if text != "" {
		names = strings.Split(text, ",")
	}
	return names, noted, ValidateDevices(names)
}
