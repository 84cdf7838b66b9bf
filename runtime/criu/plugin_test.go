package criu

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"
)

func TestFindPlugin(t *testing.T) {
	empty, full := t.TempDir(), t.TempDir()
	path := filepath.Join(full, AMDPlugin)
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := findPlugin(AMDPlugin, []string{empty, full}); got != path || err != nil {
		t.Errorf("got %s, %v", got, err)
	}
	if _, err := findPlugin(AMDPlugin, []string{empty}); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("got %v", err)
	}
}

// TestLinkPlugin links twice: a container may be dumped again when CRIU was updated.
func TestLinkPlugin(t *testing.T) {
	prefix, dir := t.TempDir(), t.TempDir()
	for _, sub := range []string{"bin", "lib/criu"} {
		if err := os.MkdirAll(filepath.Join(prefix, sub), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	plugin := filepath.Join(prefix, "lib/criu", AMDPlugin)
	if err := os.WriteFile(plugin, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(prefix, "bin/criu"), []byte("#!/bin/true\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", filepath.Join(prefix, "bin"))
	for range 2 {
		if err := LinkPlugin(AMDPlugin, dir); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.Readlink(filepath.Join(dir, AMDPlugin)); got != plugin || err != nil {
		t.Errorf("got %s, %v", got, err)
	}
}
