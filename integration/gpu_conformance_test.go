package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/cryo-project/cryo/integration/conformance"
)

// TestGPUConformance makes each call of the memory API that the fake driver has, with the engine keeper's library and without: the outcomes are the same, but
// for those that have a reason. Case conformance of integration/gpu does it on hardware.
func TestGPUConformance(t *testing.T) {
	program := conformanceProgram(t)
	without, with := conforms(t, program, ""), conforms(t, program, shared.lab.Tool("libcryo-gpu.so"))
	if !strings.Contains(without, "library is not loaded") || !strings.Contains(with, "library is loaded") {
		t.Fatalf("without the library:\n%.300s\nwith it:\n%.300s", without, with)
	}
	c, err := conformance.Compare(without, with)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(c)
	for _, d := range c.Unexplained() {
		if !strings.Contains(d.Without, " taken=") { // the fake driver's own memory is of pages of 4 KiB, real ones' of 2 MiB
			t.Error(d)
		}
	}
	for _, line := range c.Ended {
		t.Error(line)
	}
	for _, name := range c.Uncalled {
		t.Errorf("no test calls %s", name)
	}
}

// conformanceProgram compiles the program.
func conformanceProgram(t *testing.T) string {
	t.Helper()
	sources, err := filepath.Glob("gpu/workloads/conformance*.c")
	if err != nil || len(sources) == 0 {
		t.Fatalf("no sources: %v", err)
	}
	program := filepath.Join(t.TempDir(), "conformance")
	args := append([]string{"-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-format-truncation", "-o", program}, sources...)
	if out, err := exec.Command("gcc", append(args, "-ldl", "-pthread")...).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	return program
}

// conforms runs the program with a fake device of its own and returns what it prints. The pieces of the library, if there is one, have 4 MiB.
func conforms(t *testing.T, program, library string) string {
	t.Helper()
	const piece = "4194304"
	dir := t.TempDir()
	device := filepath.Join(dir, "GPU-00000001-0000-4000-8000-0000000000c0")
	if err := os.Mkdir(device, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(device, "total"), []byte(strconv.Itoa(512<<20)), 0o644); err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), program, "--piece", piece)
	c.Env = append(os.Environ(), "FAKECUDA_DIR="+dir, "LD_LIBRARY_PATH="+shared.lab.Tool("fakecuda"), "CRYO_GPU_PIECE_BYTES="+piece)
	if library != "" {
		c.Env = append(c.Env, "LD_PRELOAD="+library)
	}
	out, err := c.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", c, err, out)
	}
	return string(out)
}
