package restore

import (
	"fmt"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/runtime/criu"
	"github.com/cryo-project/cryo/runtime/setns"
)

// keepHostname has CRIU leave the names of a UTS namespace as they are that the container joins, which is its pod's: by CRIU's images in dir, all containers of the pod would get those of the
// snapshot's pod.
func keepHostname(dir string, spec *specs.Spec) error {
	if spec.Linux == nil {
		return nil
	}
	for _, n := range spec.Linux.Namespaces {
		if n.Type != specs.UTSNamespace || n.Path == "" {
			continue
		}
		var names unix.Utsname
		if err := setns.Do(unix.CLONE_NEWUTS, n.Path, func() error { return unix.Uname(&names) }); err != nil {
			return fmt.Errorf("read the hostname of the namespace %s: %w", n.Path, err)
		}
		return criu.SetHostname(dir, unix.ByteSliceToString(names.Nodename[:]), unix.ByteSliceToString(names.Domainname[:]))
	}
	return nil
}
