package cdi

import (
	"slices"

	"tags.cncf.io/container-device-interface/pkg/parser"
)

const (
	maxNames = 256 // devices of one container
	maxName  = 256 // bytes of a name
)

// Validate returns a [*NameError] unless every name is that of a CDI device, VENDOR/CLASS=NAME, and none is there twice.
func Validate(names []string) error {
	if len(names) > maxNames {
		return &NameError{Name: names[maxNames], Reason: "there are too many"}
	}
	for i, name := range names {
		switch _, _, _, err := parser.ParseQualifiedName(name); {
		case len(name) > maxName:
			return &NameError{Name: name[:maxName], Reason: "it is too long"}
		case err != nil:
			return &NameError{Name: name, Reason: "it is not of the form VENDOR/CLASS=NAME"}
		case slices.Contains(names[:i], name):
			return &NameError{Name: name, Reason: "it is named twice"}
		}
	}
	return nil
}
