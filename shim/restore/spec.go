package restore

import (
	"path"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/shim/worker"
)

// adapt makes the specification of a snapshot that of the container id in a namespace of containerd on this host.
// systemd tells whether systemd runs here.
func adapt(spec *specs.Spec, namespace, id string, systemd bool) {
	delete(spec.Annotations, worker.Annotation) // of the snapshot's container, if it was restored by that
	delete(spec.Annotations, worker.FallbackAnnotation)
	if spec.Linux != nil {
		spec.Linux.CgroupsPath = cgroupsPath(spec.Linux.CgroupsPath, namespace, id, systemd)
	}
}

// cgroupsPath gives a container a cgroup of its own in the manner the snapshot's had: none, slice:prefix:name for
// systemd, or a path. The names of a snapshot are not followed, save for a slice of the usual form: they could be those
// of another container. Without systemd there are only paths.
func cgroupsPath(old, namespace, id string, systemd bool) string {
	if old == "" {
		return ""
	}
	parts := strings.Split(old, ":")
	if len(parts) != 3 || !systemd {
		return path.Join("/", namespace, id)
	}
	slice := parts[0]
	if slice != "user.slice" && slice != "" {
		slice = "system.slice"
	}
	return slice + ":" + Plain(namespace, '_') + ":" + Plain(id, '_')
}

// Plain makes text a part of a systemd unit's name, or of a tag: what is not allowed there becomes another character. Source: systemd.unit(5), and the OCI distribution
// specification, "Pulling manifests".
func Plain(s string, other rune) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_.", r) {
			return r
		}
		return other
	}, s)
}

// joinNetwork makes the container use the network namespace at path, if it had one of a path.
func joinNetwork(spec *specs.Spec, path string) error {
	if spec.Linux != nil {
		for i, ns := range spec.Linux.Namespaces {
			if ns.Type == specs.NetworkNamespace && ns.Path != "" {
				spec.Linux.Namespaces[i].Path = path
				return nil
			}
		}
	}
	return Wrong("--network-ns: the container had a network namespace of its own, which is restored with it")
}
