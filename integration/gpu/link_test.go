package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestPassOn runs the case on a fake device.
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
	dir := t.TempDir()
	t.Setenv("FAKECUDA_DIR", dir)
	if err := os.Mkdir(filepath.Join(dir, device), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, device, "total"), []byte("314572800"), 0o644); err != nil {
		t.Fatal(err)
	}
	r := &result{Times: map[string][]float64{}}
	if err := passOn(t.Context(), r, program, device, 2, 10<<20); err != nil {
		t.Fatal(err)
	}
	if len(r.Times) != 7 || len(r.Times["keeper.ready"]) != 2 || len(r.Checks) != 7 {
		t.Errorf("%d times, and %d checks: %v %q", len(r.Times), len(r.Checks), r.Times, r.Checks)
	}
}
