package main

import (
	"github.com/distribution/reference"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// referrerOf gives the image a snapshot refers to, so that registries list it among the image's referrers: the base
// image where the snapshot goes into the same repository, else nothing. A manifest whose subject is not in its repository
// cannot be copied by oras.
func referrerOf(base ocispec.Descriptor, image, ref string) *ocispec.Descriptor {
	if repository(image) == "" || repository(image) != repository(ref) {
		return nil
	}
	return &base
}

// repository gives a reference's host and path; nothing if it is none.
func repository(ref string) string {
	named, err := reference.ParseDockerRef(ref)
	if err != nil {
		return ""
	}
	return named.Name()
}
