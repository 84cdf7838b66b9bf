package trust

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// steering are prefixes of annotations and labels that programs of the host act upon: CRIU options, systemd
// properties, device injection, cryo's own, runtimes, restart monitors and the state of other clients.
var steering = []string{
	"org.criu.", "org.systemd.property.", "cdi.k8s.io/", "run.oci.", "io.kubernetes.", "io.containerd.", "containerd.io/",
	"io.cri-containerd", "io.cryo.", "nerdctl/", "io.katacontainers.", "devices.nri.io", "io.x-k8s.nri",
}

func steers(key string) bool {
	return slices.ContainsFunc(steering, func(prefix string) bool { return strings.HasPrefix(key, prefix) })
}

// Labels returns those labels of a snapshot's container that may be put on another.
func Labels(labels map[string]string) map[string]string {
	kept := maps.Clone(labels)
	maps.DeleteFunc(kept, func(key, _ string) bool { return steers(key) && !isHook(key) })
	if kept == nil {
		kept = map[string]string{}
	}
	return kept
}

// drop takes out of the specification what no snapshot gets, and lists what a user may miss.
func drop(spec *specs.Spec) (dropped []string) {
	if n := hooks(spec.Hooks); n > 0 {
		dropped = append(dropped, fmt.Sprintf("%d hooks (programs of the host; a network made by hooks is missing)", n))
	}
	spec.Hooks = nil
	for _, key := range slices.Sorted(maps.Keys(spec.Annotations)) {
		if !steers(key) || isHook(key) {
			continue
		}
		delete(spec.Annotations, key)
		if strings.HasPrefix(key, "org.criu.") || strings.HasPrefix(key, "org.systemd.") || strings.HasPrefix(key, "cdi.") {
			dropped = append(dropped, "the annotation "+key)
		}
	}
	if spec.Linux != nil && spec.Linux.Seccomp != nil && spec.Linux.Seccomp.ListenerPath != "" {
		spec.Linux.Seccomp.ListenerPath, spec.Linux.Seccomp.ListenerMetadata = "", ""
		dropped = append(dropped, "the seccomp listener")
	}
	spec.Solaris, spec.Windows, spec.VM, spec.ZOS, spec.FreeBSD = nil, nil, nil, nil, nil
	// The rootfs is the snapshotter's, never a folder of the host.
	readonly := spec.Root != nil && spec.Root.Readonly
	spec.Root = &specs.Root{Path: "rootfs", Readonly: readonly}
	return dropped
}

func hooks(h *specs.Hooks) int {
	if h == nil {
		return 0
	}
	n := 0
	//lint:ignore SA1019 Prestart is deprecated, and in old specifications all the same
	for _, list := range [][]specs.Hook{h.Prestart, h.CreateRuntime, h.CreateContainer, h.StartContainer, h.Poststart, h.Poststop} {
		n += len(list)
	}
	return n
}
