package shim

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"
)

func TestMakeImages(t *testing.T) {
	if _, err := makeImages(""); !errors.Is(err, errdefs.ErrInvalidArgument) {
		t.Errorf("no name: %v", err)
	}
	full := t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "inventory.img"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := makeImages(full); !errors.Is(err, errdefs.ErrAlreadyExists) {
		t.Errorf("an older checkpoint: %v", err)
	}
	for name, dir := range map[string]string{"new": filepath.Join(t.TempDir(), "a", "b"), "empty": t.TempDir()} {
		undo, err := makeImages(dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "pages-1.img"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		undo()
		entries, err := os.ReadDir(dir)
		if len(entries) > 0 || os.IsNotExist(err) != (name == "new") {
			t.Errorf("%s: left %v, %v", name, entries, err)
		}
	}
}
