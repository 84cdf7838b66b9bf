package restore

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/shim/config"
)

// TestCheckTrial: a container is refused whose snapshot cannot be restored beside it without touching what is its own, or others'.
func TestCheckTrial(t *testing.T) {
	own := func() *specs.Spec {
		return &specs.Spec{
			Mounts: []specs.Mount{{Destination: "/proc", Type: "proc"}, {Destination: "/etc/hosts", Type: "bind", Source: "/x"}},
			Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace}, {Type: specs.NetworkNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace}, {Type: specs.MountNamespace},
			}},
		}
	}
	unsigned := config.Default().Trust
	if err := CheckTrial(own(), os.Getpid(), unsigned, "docker.io/a/b:1"); err != nil {
		t.Error(err)
	}
	for i := range own().Linux.Namespaces {
		without, joined := own(), own()
		without.Linux.Namespaces = slices.Delete(without.Linux.Namespaces, i, i+1)
		joined.Linux.Namespaces[i].Path = "/proc/1/ns/x"
		wantRule(t, CheckTrial(without, os.Getpid(), unsigned, "docker.io/a/b:1"), "verify-namespace")
		wantRule(t, CheckTrial(joined, os.Getpid(), unsigned, "docker.io/a/b:1"), "verify-namespace")
	}
	dir := t.TempDir()
	small, large, odd := filepath.Join(dir, "small"), filepath.Join(dir, "large"), filepath.Join(dir, "a:b")
	if err := errors.Join(os.WriteFile(small, nil, 0o600), os.WriteFile(large, nil, 0o600), os.Truncate(large, shieldedFile+1), os.Mkdir(odd, 0o700)); err != nil {
		t.Fatal(err)
	}
	for source, rule := range map[string]string{
		dir: "", small: "", large: "verify-mount", odd: "verify-mount", filepath.Join(dir, "none"): "verify-mount", "/dev/null": "verify-mount", "/": "verify-mount", // /proc is below it
	} {
		bound := own()
		bound.Mounts = append(bound.Mounts, specs.Mount{Destination: "/data", Type: "none", Source: source, Options: []string{"rbind", "ro"}})
		err := CheckTrial(bound, os.Getpid(), unsigned, "docker.io/a/b:1")
		if rule != "" {
			wantRule(t, err, rule)
		} else if err != nil {
			t.Error(err)
		}
	}
	bound := own()
	bound.Mounts = append(bound.Mounts, specs.Mount{Destination: "/data", Type: "bind", Source: dir})
	wantRule(t, CheckTrial(bound, 0, unsigned, "docker.io/a/b:1"), "verify-mount") // the shim has another mount namespace, or has ended
	signed := unsigned
	signed.Default = "signed"
	wantRule(t, CheckTrial(own(), os.Getpid(), signed, "docker.io/a/b:1"), "verify-signature")
}

func wantRule(t *testing.T, err error, rule string) {
	t.Helper()
	if failure.Class(err) != rule || !errdefs.IsFailedPrecondition(err) || failure.Hint(err) == "" {
		t.Errorf("got %v (%s), want a refusal by %s", err, failure.Class(err), rule)
	}
}
