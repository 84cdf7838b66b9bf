package restore

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

func TestProvideEtcFiles(t *testing.T) {
	there := filepath.Join(t.TempDir(), "hosts")
	if err := os.WriteFile(there, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	spec := func() *specs.Spec {
		return &specs.Spec{Mounts: []specs.Mount{
			{Destination: "/etc/hosts", Type: "bind", Source: there},
			{Destination: "/etc/resolv.conf", Type: "bind", Source: "/gone/resolv.conf"},
			{Destination: "/etc/hostname", Type: "bind", Source: "/given"},
			{Destination: "/etc/passwd", Type: "bind", Source: "/gone/passwd"},
			{Destination: "/etc/hosts", Type: "tmpfs", Source: "tmpfs"},
		}}
	}
	for _, c := range []struct {
		allowed bool
		want    []string
	}{
		{false, []string{"/etc/hosts", "/etc/resolv.conf"}},
		{true, []string{"/etc/resolv.conf"}},
	} {
		s := spec()
		got := ProvideEtcFiles(s, "/d", []string{"/etc/hostname"}, c.allowed)
		if !slices.Equal(got, c.want) {
			t.Errorf("allowed %v: provided %v", c.allowed, got)
		}
		if s.Mounts[1].Source != "/d/resolv.conf" || s.Mounts[2].Source != "/given" || s.Mounts[3].Source != "/gone/passwd" || s.Mounts[4].Source != "tmpfs" {
			t.Errorf("mounts %v", s.Mounts)
		}
	}
}

func TestWriteEtcFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	before := unix.Umask(0o077) // as some administrators' shells have it
	err := WriteEtcFiles(dir, "web")
	unix.Umask(before)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"hosts": "127.0.1.1\tweb\n", "hostname": "web\n", "resolv.conf": ""} {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || !strings.Contains(string(data), want) {
			t.Errorf("%s: %q, %v", name, data, err)
		}
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode() != 0o644 {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
}
