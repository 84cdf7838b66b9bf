package trust

import (
	"errors"
	"fmt"
	"io/fs"
	"path"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// rules are what CRIU's images are reviewed by.
var rules = []struct {
	name   string
	review func(*imageReviewer) error
}{
	{"images", (*imageReviewer).names},
	{"choices", (*imageReviewer).choices},
	{"inventory", (*imageReviewer).inventory},
	{"open-files", (*imageReviewer).paths},
	{"file-locks", (*imageReviewer).locks},
	{"terminals", (*imageReviewer).terminals},
	{"memory-regions", (*imageReviewer).regions},
	{"credentials", (*imageReviewer).credentials},
	{"seccomp", (*imageReviewer).filters},
	{"namespaces", (*imageReviewer).kernelObjects},
	{"external-namespaces", (*imageReviewer).externalNamespaces},
	{"users", (*imageReviewer).users},
	{"nested-namespaces", (*imageReviewer).nested},
	{"mounts", (*imageReviewer).mounts},
	{deletedRule, (*imageReviewer).remaps},
	{"kernel-files", (*imageReviewer).kernelFiles},
	{"sent-files", (*imageReviewer).sent},
	{"cgroups", (*imageReviewer).cgroups},
}

// ReviewImages lists what CRIU's images hold beyond what spec, as it was granted, has: capabilities, namespaces, mounts, or cgroups. CRIU restores as root
// whatever its images say, so a specification that asks for nothing is no promise.
//
// exists reports whether a path is on this host: files of /proc that the kernel does not have need no mask.
// The review ends with a [*DamagedError], whatever was granted, at an image that is damaged, that it does not know, or that says what no checkpoint writes. So
// it does at a path or a name that would lead CRIU out of its directory.
func ReviewImages(images fs.FS, spec *specs.Spec, exists func(path string) bool) ([]Request, error) {
	r := newImageReviewer(images, spec, exists)
	var err error
	for _, rule := range rules {
		r.rule = rule.name
		if err = rule.review(r); err != nil {
			if damaged := (*DamagedError)(nil); errors.As(err, &damaged) {
				damaged.Rule = rule.name
			}
			break
		}
	}
	return r.requests, err
}

type imageReviewer struct {
	reviewer
	images fs.FS
	spec   *specs.Spec
	exists func(path string) bool // on this host
	// What the specification has: images may ask a million times.
	granted map[uint]bool // capabilities, by number
	mounted map[string]specMount
	nodes   map[string]bool // devices
	groups  map[uint32]bool // additional ones

	// nvidia is the tmpfs that has what [imageReviewer.params] looks for.
	nvidia struct {
		read  bool
		of    uint32 // its device
		files map[string]entry
	}
}

func newImageReviewer(images fs.FS, spec *specs.Spec, exists func(path string) bool) *imageReviewer {
	r := &imageReviewer{reviewer: newReviewer(""), images: images, spec: spec, exists: exists, granted: grantedBy(spec), mounted: specMounts(spec),
		nodes: map[string]bool{}, groups: map[uint32]bool{}}
	if spec.Process != nil {
		for _, id := range spec.Process.User.AdditionalGids {
			r.groups[id] = true
		}
	}
	if spec.Linux != nil {
		for _, d := range spec.Linux.Devices {
			r.nodes[path.Clean(d.Path)] = true
		}
	}
	return r
}

// files lists images by a pattern of their names.
func files(images fs.FS, pattern string) ([]string, error) {
	names, err := fs.Glob(images, pattern)
	if err != nil {
		return nil, fmt.Errorf("list CRIU images: %w", err)
	}
	return names, nil
}
