package trust

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// TestPlaceMounts has links in a root file system, some of which lead out of it.
func TestPlaceMounts(t *testing.T) {
	root := t.TempDir()
	err := errors.Join(os.MkdirAll(filepath.Join(root, "var/lib"), 0o755), os.MkdirAll(filepath.Join(root, "run/lock"), 0o755), os.Symlink("/run", filepath.Join(root, "var/run")),
		os.Symlink("../../../../../etc", filepath.Join(root, "out")), os.Symlink("var/run/lock", filepath.Join(root, "lock")), os.Symlink("loop", filepath.Join(root, "loop")))
	if err != nil {
		t.Fatal(err)
	}
	for destination, want := range map[string]string{
		"/proc": "/proc", "/var/lib/x": "/var/lib/x", "/var/run/secrets/kubernetes.io": "/run/secrets/kubernetes.io", "/var/run/": "/run", "/out/passwd": "/etc/passwd", "/lock": "/run/lock", "relative": "/relative", "/../..": "/",
	} {
		all := []specs.Mount{{Destination: destination, Source: "s"}}
		placed, err := PlaceMounts(root, all)
		if err != nil || len(placed) != 1 || placed[0].Destination != want || placed[0].Source != "s" || all[0].Destination != destination {
			t.Errorf("%s: %v, %v, want %s", destination, placed, err, want)
		}
	}
	if placed, err := PlaceMounts(root, []specs.Mount{{Destination: "/loop/x"}}); err == nil {
		t.Errorf("a loop: %v", placed)
	}
}
