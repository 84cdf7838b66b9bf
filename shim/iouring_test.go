package shim

import (
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// TestRefuseRing changes specifications with and without a filter of system calls.
func TestRefuseRing(t *testing.T) {
	asks := map[string]string{"io.cryo.io-uring": "refuse"}
	profile := &specs.LinuxSeccomp{DefaultAction: specs.ActErrno, Syscalls: []specs.LinuxSyscall{
		{Names: []string{"read", "io_uring_setup"}, Action: specs.ActAllow}, {Names: []string{"io_uring_setup"}, Action: specs.ActAllow},
	}}
	for name, test := range map[string]struct {
		spec    specs.Spec
		allowed []string
	}{
		"no filter": {specs.Spec{Annotations: asks}, nil},
		"a profile": {specs.Spec{Annotations: asks, Linux: &specs.Linux{Seccomp: profile}}, []string{"read"}},
	} {
		if err := refuseRing(&test.spec); err != nil {
			t.Fatal(err)
		}
		var allowed, refused []string
		for _, s := range test.spec.Linux.Seccomp.Syscalls {
			if s.Action == specs.ActAllow {
				allowed = append(allowed, s.Names...)
			} else if s.Action == specs.ActErrno && *s.ErrnoRet == uint(unix.ENOSYS) {
				refused = append(refused, s.Names...)
			}
		}
		if len(refused) != 1 || refused[0] != "io_uring_setup" || len(allowed) != len(test.allowed) {
			t.Errorf("%s: allowed %q, refused %q", name, allowed, refused)
		}
	}
	plain := specs.Spec{}
	if err := refuseRing(&plain); err != nil || plain.Linux != nil {
		t.Errorf("without the annotation: %+v, %v", plain.Linux, err)
	}
	if err := refuseRing(&specs.Spec{Annotations: map[string]string{"io.cryo.io-uring": "yes"}}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("another value: %v", err)
	}
}
