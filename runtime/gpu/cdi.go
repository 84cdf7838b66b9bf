package gpu

import (
	"maps"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"
)

// CDI is what the CDI files of a host define, as they were when it was opened.
type CDI struct {
	cache *cdi.Cache
	dirs  []string
}

// OpenCDI reads the CDI files in directories, later ones winning over earlier ones. None: those of every CDI client, /etc/cdi
// and /var/run/cdi. Files that are not as they should be define nothing; the error for a device that is missing names them.
func OpenCDI(dirs ...string) *CDI {
	if len(dirs) == 0 {
		dirs = cdi.DefaultSpecDirs
	}
	cache, _ := cdi.NewCache(cdi.WithSpecDirs(dirs...), cdi.WithAutoRefresh(false)) // its error is always nil
	return &CDI{cache: cache, dirs: cache.GetSpecDirectories()}
}

// Names lists the devices that this host has, sorted.
func (h *CDI) Names() []string { return h.cache.ListDevices() }

// Edits returns what devices put into a specification on this host. The error is of kind InvalidArgument for what is no name, else FailedPrecondition: there is no such
// device, or the host cannot give what its CDI file says.
func (h *CDI) Edits(names []string) (CDIEdits, error) {
	if err := ValidateDevices(names); err != nil {
		return CDIEdits{}, err
	}
	if missing := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return h.cache.GetDevice(n) != nil }); len(missing) > 0 {
		return CDIEdits{}, h.noDeviceError(missing)
	}
	var added specs.Spec
	if _, err := h.cache.InjectDevices(&added, names...); err != nil {
		return CDIEdits{}, brokenError(names, err)
	}
	return edits(&added), nil
}

// Inject puts devices into a specification. What the same devices have put there before is replaced, so that
// injecting twice is injecting once. Errors are those of [CDI.Edits]; the specification is unchanged then.
func (h *CDI) Inject(spec *specs.Spec, names []string) error {
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
func (h *CDI) damaged() map[string]error {
	files := map[string]error{}
	for path, errs := range maps.All(h.cache.GetErrors()) {
		if len(errs) > 0 {
			files[path] = errs[0]
		}
	}
	return files
}
