//go:build cgo

package main

import (
	"bytes"
	"debug/elf"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cryo-project/cryo/integration/gputest"
)

func TestRun(t *testing.T) {
	for _, test := range []struct {
		args   []string
		code   int
		stdout string
		stderr string
	}{
		{[]string{"--help"}, 0, "cryo-gpu-keeper facts", ""},
		{[]string{"--version"}, 0, "cryo-gpu-keeper 0.1.0-dev, go", ""},
		{nil, 2, "", "cryo-gpu-keeper facts"},
		{[]string{"driver", "more"}, 2, "", "cryo-gpu-keeper facts"},
		{[]string{"sing"}, 2, "", "cryo-gpu-keeper facts"},
	} {
		var stdout, stderr bytes.Buffer
		code := run(test.args, &stdout, &stderr)
		if code != test.code || !strings.Contains(stdout.String(), test.stdout) || !strings.Contains(stderr.String(), test.stderr) {
			t.Errorf("%q: %d, %q, %q", test.args, code, &stdout, &stderr)
		}
	}
}

// TestPortable holds the program to what Debian 12 and Ubuntu 22.04 have, wherever it is built: glibc 2.35, no library but
// libc, and none of NVIDIA's.
func TestPortable(t *testing.T) {
	gputest.Need(t)
	f, err := elf.Open(gputest.Bin("gputest", "cryo-gpu-keeper"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	libraries, err := f.ImportedLibraries()
	if err != nil {
		t.Fatal(err)
	}
	for _, library := range libraries {
		if !slices.Contains([]string{"libc.so.6", "libdl.so.2", "libpthread.so.0", "ld-linux-x86-64.so.2"}, library) {
			t.Errorf("linked with %s", library)
		}
	}
	symbols, err := f.ImportedSymbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range symbols {
		if newest := "GLIBC_2.35"; strings.HasPrefix(s.Version, "GLIBC_2.") && len(s.Version) >= len(newest) && s.Version > newest {
			t.Errorf("%s needs %s", s.Name, s.Version)
		}
	}
	// NVML's functions are found when they are called: bound at the start they would keep it from starting.
	if flags, err := f.DynValue(elf.DT_FLAGS); err != nil || len(flags) > 0 && elf.DynFlag(flags[0])&elf.DF_BIND_NOW != 0 {
		t.Errorf("bound at the start: %v, %v", flags, err)
	}
}

func TestMPS(t *testing.T) {
	for name, want := range map[string]bool{"nvidia-cuda-mps\n": true, "nvidia-smi\n": false, "": false} {
		proc := t.TempDir()
		for _, p := range []struct{ dir, comm string }{{"1", "init\n"}, {"17", name}, {"self", "nvidia-cuda-mps\n"}} {
			if err := os.MkdirAll(filepath.Join(proc, p.dir), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(proc, p.dir, "comm"), []byte(p.comm), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got := mpsRuns(proc); got != want {
			t.Errorf("%q: %v", name, got)
		}
	}
}
