package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestLogged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	before := "level=error msg=\"shim disconnected\" id=c namespace=default\n"
	if err := os.WriteFile(path, []byte(before+"level=debug msg=\"creating task\" id=r1\nlevel=error msg=\"end r2: its memory is damaged\"\nlevel=info msg=\"shim disconnected\" id=r3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]bool{"c": false, "r1": false, "r2": true, "r3": true, "r": false} {
		if got := logged(path, int64(len(before)), id); got != want {
			t.Errorf("%s: %t", id, got)
		}
	}
	if !logged(path, 0, "c") {
		t.Error("c is not found from the beginning")
	}
}
