// Package cdi puts GPUs into runtime specifications, and takes them out again, by the Container Device Interface.
//
// A client that is asked for a CDI device (ctr run --device nvidia.com/gpu=0) expands it when it makes the container: the
// specification holds device nodes, mounts of the driver's libraries, environment and hooks of that host, and no longer the
// name. A snapshot is worth nothing to another host with all that in it. [Host.Find] finds the names again, [Edits.Strip]
// removes what they were expanded to, and [Host.Inject] expands them to what the restoring host has under these names.
//
// Names and edits that come out of a snapshot are another's words. A name only selects a device that this host's own
// CDI files define; hooks, which are programs, come from these files and from nowhere else.
//
// Source: https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md
package cdi

import (
	"maps"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"
)

// Host is what the CDI files of a host define, as they were when it was opened.
type Host struct {
	cache *cdi.Cache
	dirs  []string
}

// Open reads the CDI files in directories, later ones winning over earlier ones. None: those of every CDI client, /etc/cdi
// and /var/run/cdi. Files that are not as they should be define nothing; the error for a device that is missing names them.
func Open(dirs ...string) *Host {
	if len(dirs) == 0 {
		dirs = cdi.DefaultSpecDirs
	}
	cache, _ := cdi.NewCache(cdi.WithSpecDirs(dirs...), cdi.WithAutoRefresh(false)) // its error is always nil
	return &Host{cache: cache, dirs: cache.GetSpecDirectories()}
}

// Names lists the devices that this host has, sorted.
func (h *Host) Names() []string { return h.cache.ListDevices() }

// Edits returns what devices put into a specification on this host. The error is of kind InvalidArgument for what is no name, else FailedPrecondition: there is no such
// device, or the host cannot give what its CDI file says.
func (h *Host) Edits(names []string) (Edits, error) {
	if err := Validate(names); err != nil {
		return Edits{}, err
	}
	if missing := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return h.cache.GetDevice(n) != nil }); len(missing) > 0 {
		return Edits{}, h.noDeviceError(missing)
	}
	var added specs.Spec
	if _, err := h.cache.InjectDevices(&added, names...); err != nil {
		return Edits{}, brokenError(names, err)
	}
	return edits(&added), nil
}

// Inject puts devices into a specification. What the same devices have put there before is replaced, so that
// injecting twice is injecting once. Errors are those of [Host.Edits]; the specification is unchanged then.
func (h *Host) Inject(spec *specs.Spec, names []string) error {
	if len(names) == 0 {
		return nil
	}
	e, err := h.Edits(names)
	if err != nil {
		return err
	}
	e.Strip(spec)
	if _, err := h.cache.InjectDevices(spec, names...); err != nil {
		return brokenError(names, err)
	}
	return nil
}

// damaged returns what is wrong with CDI files, by their paths.
func (h *Host) damaged() map[string]error {
	files := map[string]error{}
	for path, errs := range maps.All(h.cache.GetErrors()) {
		if len(errs) > 0 {
			files[path] = errs[0]
		}
	}
	return files
}
