package integration

import (
	"os"
	"path/filepath"
	"testing"
)

// settings makes the directory data and the file settings.
func settings(t *testing.T, dir, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(dir, "data"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.WriteFile(filepath.Join(dir, "settings"), []byte(content+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
}
