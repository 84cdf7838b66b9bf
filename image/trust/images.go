package trust

import (
	"fmt"
	"path/filepath"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// host tells what is on this host; tests have one of their own.
type host struct {
	exists func(path string) bool
}

// Images returns an error, a [*RefusedError], if CRIU's images in dir hold more than spec, which was confined with
// the same policy, was granted: capabilities, namespaces, mounts, or cgroups. CRIU restores as root whatever
// its images say, so a specification that asks for nothing is no promise.
//
// exists tells whether a path is on this host: files of /proc that the kernel does not have need no mask.
// An image that is damaged, or says what no checkpoint writes, gives a [*DamagedError], whatever was granted: one that is not known, and paths and
// names by which CRIU would leave the directory that it works in.
func Images(dir string, spec *specs.Spec, p Policy, exists func(path string) bool) error {
	r := imageReviewer{dir: dir, spec: spec, host: host{exists: exists}}
	for _, review := range []func() error{
		r.names, r.inventory, r.paths, r.terminals, r.regions, r.credentials, r.filters, r.kernelObjects, r.externalNamespaces, r.users, r.mounts, r.cgroups,
	} {
		if err := review(); err != nil {
			return err
		}
	}
	for i := range r.requests {
		r.requests[i].Allowed = p.Allows(r.requests[i].Grant)
	}
	refused := slices.DeleteFunc(r.requests, func(r Request) bool { return r.Allowed })
	if len(refused) > 0 {
		return &RefusedError{Requests: refused}
	}
	return nil
}

type imageReviewer struct {
	reviewer
	dir  string
	spec *specs.Spec
	host host
}

// ask asks once for each thing: many processes may hold the same.
func (r *imageReviewer) ask(g Grant, format string, a ...any) {
	what := fmt.Sprintf(format, a...)
	if !slices.ContainsFunc(r.requests, func(old Request) bool { return old.Grant == g && old.What == what }) {
		r.reviewer.ask(g, "%s", what)
	}
}

// files lists images by a pattern of their names.
func (r *imageReviewer) files(pattern string) ([]string, error) {
	paths, err := filepath.Glob(filepath.Join(r.dir, pattern))
	if err != nil {
		return nil, fmt.Errorf("list CRIU images: %w", err)
	}
	for i := range paths {
		paths[i] = filepath.Base(paths[i])
	}
	return paths, nil
}
