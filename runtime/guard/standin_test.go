package guard

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

func TestLink(t *testing.T) {
	base := filepath.Join(t.TempDir(), "cryo", "programs")
	first, err := link(base, "/bin/first")
	if err != nil {
		t.Fatal(err)
	}
	second, err := link(base, "/bin/second")
	if err != nil || first == second {
		t.Fatalf("%s and %s (%v)", first, second, err)
	}
	path := filepath.Join(first, TarName)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/bin/other", path); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if again, err := link(base, "/bin/first"); err != nil || again != first {
			t.Fatalf("%s, not %s (%v)", again, first, err)
		}
		for _, name := range []string{TarName, CRIUName} {
			if target, err := os.Readlink(filepath.Join(first, name)); err != nil || target != "/bin/first" {
				t.Errorf("%s leads to %s (%v)", name, target, err)
			}
		}
	}
	if err := os.Chmod(base, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := link(base, "/bin/first"); err == nil {
		t.Error("in a directory that everybody writes to, it is made")
	}
}

func TestFind(t *testing.T) {
	dir, empty := t.TempDir(), t.TempDir()
	program := filepath.Join(dir, CRIUName)
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", base+"/0:relative:"+empty+":"+dir)
	if found, err := FindProgram(CRIUName); err != nil || found != program {
		t.Errorf("it finds %s (%v)", found, err)
	}
	t.Setenv("PATH", base+"/0:"+empty)
	if found, err := FindProgram(CRIUName); !errors.Is(err, exec.ErrNotFound) {
		t.Errorf("it finds %s (%v)", found, err)
	}
}
