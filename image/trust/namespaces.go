package trust

import (
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// ownNamespaces are those every container has for itself. Cgroup, user and time namespaces are commonly the host's.
var ownNamespaces = []specs.LinuxNamespaceType{
	specs.PIDNamespace, specs.IPCNamespace, specs.UTSNamespace, specs.MountNamespace, specs.NetworkNamespace,
}

func (r *reviewer) namespaces(spec *specs.Spec, p Policy) {
	var has []specs.LinuxNamespaceType
	for _, ns := range spec.Linux.Namespaces {
		has = append(has, ns.Type)
		if ns.Path == "" || slices.Contains(p.Namespaces, ns.Type) {
			continue
		}
		r.ask(Namespaces, "the %s namespace at %s", ns.Type, ns.Path)
	}
	for _, kind := range ownNamespaces {
		if !slices.Contains(has, kind) {
			r.ask(Namespaces, "the host's %s namespace", kind)
		}
	}
}

// own reports whether the container has a namespace of a kind for itself.
func own(spec *specs.Spec, kind specs.LinuxNamespaceType) bool {
	return slices.ContainsFunc(spec.Linux.Namespaces, func(ns specs.LinuxNamespace) bool { return ns.Type == kind && ns.Path == "" })
}
