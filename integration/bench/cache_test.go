package main

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestInCore tells what is in the page cache as cachestat does.
func TestInCore(t *testing.T) {
	const pages = 300
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, make([]byte, pages*4096-5), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if cached, total, err := inCore(f, pages*4096-5); cached != pages || total != pages || err != nil {
		t.Errorf("just written: %d of %d pages, %v", cached, total, err)
	}
	if cached, total, err := inCore(f, 0); cached != 0 || total != 0 || err != nil {
		t.Errorf("an empty file: %d of %d pages, %v", cached, total, err)
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
