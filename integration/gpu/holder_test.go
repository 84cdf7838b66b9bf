package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestPassOn runs the case on a fake device, with room for a copy and without.
func TestPassOn(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "cryo-gpu-keeper")
	build := exec.Command("go", "build", "-ldflags=-extldflags=-Wl,-z,lazy", "-o", program, "./cmd/cryo-gpu-keeper")
	build.Dir, build.Env = root, append(os.Environ(), "CGO_ENABLED=1", "CGO_CFLAGS=-O2 -g -Wno-deprecated-declarations")
	fake := exec.Command("make", "-s", "fakecuda")
	fake.Dir = root
	for _, c := range []*exec.Cmd{fake, build} {
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", c, err, out)
		}
	}
	t.Setenv("LD_LIBRARY_PATH", filepath.Join(root, "bin", "fakecuda"))
	const device = "GPU-00000001-0000-4000-8000-00000000000a"
	for total, want := range map[int]struct{ times, checks int }{300 << 20: {10, 10}, 40 << 20: {8, 9}} {
		dir := t.TempDir()
		t.Setenv("FAKECUDA_DIR", dir)
		if err := os.Mkdir(filepath.Join(dir, device), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, device, "total"), fmt.Append(nil, total), 0o644); err != nil {
			t.Fatal(err)
		}
		r := &result{Times: map[string][]float64{}}
		if err := passOn(t.Context(), r, program, device, 2, 10<<20); err != nil {
			t.Fatal(err)
		}
		if len(r.Times) != want.times || len(r.Times["holder.ready"]) != 2 || len(r.Checks) != want.checks {
			t.Errorf("%d MiB: %d times, and %d checks: %v %q", total>>20, len(r.Times), len(r.Checks), r.Times, r.Checks)
		}
	}
}
