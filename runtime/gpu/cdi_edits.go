package gpu

import (
	"maps"
	"path"
	"reflect"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// CDIEdits are the parts of a specification that CDI devices have put there. As JSON they go with a snapshot, so that a host that
// does not know the devices can take them out.
type CDIEdits struct {
	Env        []string                        `json:"env,omitempty"`
	Devices    []specs.LinuxDevice             `json:"devices,omitempty"`
	Rules      []specs.LinuxDeviceCgroup       `json:"rules,omitempty"` // of the cgroup
	Mounts     []specs.Mount                   `json:"mounts,omitempty"`
	Hooks      *specs.Hooks                    `json:"hooks,omitempty"`
	NetDevices map[string]specs.LinuxNetDevice `json:"netDevices,omitempty"`
	GIDs       []uint32                        `json:"gids,omitempty"`
	IntelRdt   *specs.LinuxIntelRdt            `json:"intelRdt,omitempty"`
}

// edits are those in a specification that holds nothing else.
func edits(added *specs.Spec) CDIEdits {
	e := CDIEdits{Mounts: added.Mounts, Hooks: added.Hooks}
	if p := added.Process; p != nil {
		e.Env, e.GIDs = p.Env, p.User.AdditionalGids
	}
	if l := added.Linux; l != nil {
		e.Devices, e.NetDevices, e.IntelRdt = l.Devices, l.NetDevices, l.IntelRdt
		if l.Resources != nil {
			e.Rules = l.Resources.Devices
		}
	}
	return e
}

// In reports whether all of the edits are in a specification. Owners and modes of nodes, and options of mounts, may differ:
// they depend on the container's user and namespaces too.
func (e CDIEdits) In(spec *specs.Spec) bool {
	has := edits(spec)
	return contains(has.Env, e.Env, func(a, b string) bool { return a == b }) &&
		contains(has.Devices, e.Devices, sameDevice) &&
		contains(has.Rules, e.Rules, sameRule) &&
		contains(has.Mounts, e.Mounts, sameMount) &&
		contains(has.GIDs, e.GIDs, func(a, b uint32) bool { return a == b }) &&
		(e.IntelRdt == nil || reflect.DeepEqual(e.IntelRdt, has.IntelRdt)) &&
		containsHooks(has.Hooks, e.Hooks) &&
		!slices.ContainsFunc(slices.Collect(maps.Keys(e.NetDevices)), func(k string) bool { return has.NetDevices[k] != e.NetDevices[k] })
}

// Strip takes the edits out of a specification, as far as they are there. It takes away and never adds, so edits of unknown
// origin cannot give a container anything.
func (e CDIEdits) Strip(spec *specs.Spec) {
	spec.Mounts = without(spec.Mounts, e.Mounts, sameMount)
	stripHooks(spec, e.Hooks)
	if p := spec.Process; p != nil {
		p.Env = without(p.Env, e.Env, func(a, b string) bool { return a == b })
		p.User.AdditionalGids = without(p.User.AdditionalGids, e.GIDs, func(a, b uint32) bool { return a == b })
	}
	l := spec.Linux
	if l == nil {
		return
	}
	l.Devices = without(l.Devices, e.Devices, sameDevice)
	if l.Resources != nil {
		l.Resources.Devices = without(l.Resources.Devices, e.Rules, func(a, b specs.LinuxDeviceCgroup) bool { return a.Allow && sameRule(a, b) })
	}
	for name, d := range e.NetDevices {
		if l.NetDevices[name] == d {
			delete(l.NetDevices, name)
		}
	}
	if e.IntelRdt != nil && reflect.DeepEqual(e.IntelRdt, l.IntelRdt) {
		l.IntelRdt = nil
	}
}

// Displace takes out of a specification what is in the way of the edits: NVIDIA's nodes of another host, if the edits bring
// nodes of their own, with the rules for them, and mounts at the same places.
func (e CDIEdits) Displace(spec *specs.Spec) {
	brings := slices.ContainsFunc(e.Devices, func(d specs.LinuxDevice) bool { return isNVIDIA(d.Path) })
	spec.Mounts = without(spec.Mounts, e.Mounts, func(a, b specs.Mount) bool {
		return path.Clean(a.Destination) == path.Clean(b.Destination) || brings && isNVIDIA(a.Destination)
	})
	l := spec.Linux
	if l == nil {
		return
	}
	var displaced []specs.LinuxDeviceCgroup
	l.Devices = slices.DeleteFunc(slices.Clone(l.Devices), func(d specs.LinuxDevice) bool {
		gone := brings && isNVIDIA(d.Path) || slices.ContainsFunc(e.Devices, func(b specs.LinuxDevice) bool { return path.Clean(b.Path) == path.Clean(d.Path) })
		if gone {
			displaced = append(displaced, specs.LinuxDeviceCgroup{Type: d.Type, Major: &d.Major, Minor: &d.Minor})
		}
		return gone
	})
	if l.Resources != nil {
		l.Resources.Devices = without(l.Resources.Devices, displaced, func(a, b specs.LinuxDeviceCgroup) bool {
			b.Allow, b.Access = true, a.Access
			return sameRule(a, b)
		})
	}
}

func sameDevice(a, b specs.LinuxDevice) bool {
	return path.Clean(a.Path) == path.Clean(b.Path) && a.Type == b.Type && a.Major == b.Major && a.Minor == b.Minor
}

func sameRule(a, b specs.LinuxDeviceCgroup) bool {
	return a.Allow == b.Allow && a.Type == b.Type && a.Access == b.Access &&
		reflect.DeepEqual(a.Major, b.Major) && reflect.DeepEqual(a.Minor, b.Minor)
}

func sameMount(a, b specs.Mount) bool {
	return path.Clean(a.Destination) == path.Clean(b.Destination) && a.Source == b.Source
}

// contains reports whether all of want are among have.
func contains[T any](have, want []T, same func(a, b T) bool) bool {
	return !slices.ContainsFunc(want, func(w T) bool {
		return !slices.ContainsFunc(have, func(h T) bool { return same(h, w) })
	})
}

// without returns those of all that are not among gone; nil stays nil.
func without[T any](all, gone []T, same func(a, b T) bool) []T {
	return slices.DeleteFunc(slices.Clone(all), func(a T) bool {
		return slices.ContainsFunc(gone, func(g T) bool { return same(a, g) })
	})
}
