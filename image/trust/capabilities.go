package trust

import (
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// ordinaryCapabilities are those a container has by default. Source: containerd's pkg/oci, defaultUnixCaps; Docker has
// the same.
var ordinaryCapabilities = []string{
	"CAP_AUDIT_WRITE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_MKNOD",
	"CAP_NET_BIND_SERVICE", "CAP_NET_RAW", "CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_CHROOT",
}

func (r *reviewer) capabilities(spec *specs.Spec) {
	if spec.Process == nil || spec.Process.Capabilities == nil {
		return
	}
	var more []string
	c := spec.Process.Capabilities
	for _, set := range [][]string{c.Bounding, c.Effective, c.Inheritable, c.Permitted, c.Ambient} {
		for _, name := range set {
			if !slices.Contains(ordinaryCapabilities, name) && !slices.Contains(more, name) {
				more = append(more, name)
			}
		}
	}
	if len(more) > 0 {
		slices.Sort(more)
		r.ask(Capabilities, "%s", strings.Join(more, ", "))
	}
}
