package main

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestChillFile counts all pages of a file, and no more of them are left than there are.
func TestChillFile(t *testing.T) {
	const pages = 300
	for size, want := range map[int]uint64{0: 0, 1: 1, pages*4096 - 5: pages} {
		path := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(path, make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if cached, total, err := chillFile(f); cached > total || total != want || err != nil {
			t.Errorf("%d bytes: %d of %d pages, %v", size, cached, total, err)
		}
	}
}

func TestTogether(t *testing.T) {
	dir := t.TempDir()
	if err := together(dir, filepath.Dir(dir)); err != nil {
		t.Error(err)
	}
	var apart *apartError
	if err := together(dir, "/proc"); !errors.As(err, &apart) || reason(err) != apart.Error() {
		t.Errorf("another file system: %v", err)
	}
	if err := together(dir, filepath.Join(dir, "none")); err == nil {
		t.Error("a directory that is not there")
	}
}
