package gpu

import (
	"slices"

	"tags.cncf.io/container-device-interface/pkg/parser"
)

const (
	maxNames = 256 // devices of one container
	maxName  = 256 // bytes of a name
)

// ValidateDevices returns an error of kind InvalidArgument unless every name is that of a CDI device, VENDOR/CLASS=NAME, and none is there twice.
func ValidateDevices(names []string) error {
	if len(names) > maxNames {
		return nameError(names[maxNames], "there are too many")
	}
	for i, name := range names {
		switch _, _, _, err := parser.ParseQualifiedName(name); {
		case len(name) > maxName:
			return nameError(name[:maxName], "it is too long")
		case err != nil:
			return nameError(name, "it is not of the form VENDOR/CLASS=NAME")
		case slices.Contains(names[:i], name):
			return nameError(name, "it is named twice")
		}
	}
	return nil
}
