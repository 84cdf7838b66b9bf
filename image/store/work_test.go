package store_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/integration/storetest"
)

// TestSweepWork: a working directory is removed when its owner has died, and neither touched while it lives nor while it removes it.
func TestSweepWork(t *testing.T) {
	w, err := storetest.Open(t).Work(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := store.SweepWork(w.Dir); !errdefs.IsUnavailable(err) {
		t.Errorf("in use: %v", err)
	}
	lock := filepath.Join(w.Dir, "lock")
	if err := os.Rename(lock, lock+"-"); err != nil {
		t.Fatal(err)
	}
	if err := store.SweepWork(w.Dir); err != nil {
		t.Errorf("being removed: %v", err)
	}
	if _, err := os.Stat(lock); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it has another lock, which keeps its owner from removing it: %v", err)
	}
	if err := errors.Join(os.Rename(lock+"-", lock), w.Close(), store.SweepWork(w.Dir)); err != nil {
		t.Errorf("gone: %v", err)
	}
	left := filepath.Join(t.TempDir(), "left")
	if err := errors.Join(os.Mkdir(left, 0o700), os.WriteFile(filepath.Join(left, "lock"), nil, 0o600), store.SweepWork(left)); err != nil {
		t.Errorf("left: %v", err)
	}
	if _, err := os.Stat(left); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("left behind: %v", err)
	}
}
