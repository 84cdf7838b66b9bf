package shim

import (
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/runtime/criu"
)

// refuseRing has a new container's programs do without io_uring, which CRIU cannot save, if the container's annotation asks for that. A container that is restored has the filter of its processes.
func refuseRing(spec *specs.Spec) error {
	value, asked := spec.Annotations[criu.RingAnnotation]
	if !asked {
		return nil
	}
	if value != criu.RingRefused {
		return fmt.Errorf("annotation %s=%q is not %s: %w", criu.RingAnnotation, value, criu.RingRefused, errdefs.ErrInvalidArgument)
	}
	if spec.Linux == nil {
		spec.Linux = &specs.Linux{}
	}
	if spec.Linux.Seccomp == nil {
		spec.Linux.Seccomp = &specs.LinuxSeccomp{DefaultAction: specs.ActAllow}
	}
	const setup = "io_uring_setup" // without it there is nothing that the other calls could use
	f := spec.Linux.Seccomp
	for i := range f.Syscalls {
		f.Syscalls[i].Names = slices.DeleteFunc(f.Syscalls[i].Names, func(name string) bool { return name == setup })
	}
	f.Syscalls = slices.DeleteFunc(f.Syscalls, func(s specs.LinuxSyscall) bool { return len(s.Names) == 0 })
	missing := uint(unix.ENOSYS)
	f.Syscalls = append(f.Syscalls, specs.LinuxSyscall{Names: []string{setup}, Action: specs.ActErrno, ErrnoRet: &missing})
	return nil
}
