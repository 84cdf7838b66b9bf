package sweep

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestAfter: the order is run once the lock is free, if the directory is there still, and until it is gone.
func TestAfter(t *testing.T) {
	for _, killed := range []bool{true, false} {
		work, mark := filepath.Join(t.TempDir(), "work"), filepath.Join(t.TempDir(), "mark")
		if err := os.Mkdir(work, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := After(t.Context(), work); err != nil {
			t.Fatalf("where there is no lock: %v", err)
		}
		lock, err := os.Create(filepath.Join(work, lockFile))
		if err != nil {
			t.Fatal(err)
		}
		defer lock.Close()
		if err := After(t.Context(), work); err != nil {
			t.Fatalf("where there is no order: %v", err)
		}
		// The first time it has not swept.
		if err := (Order{Args: []string{"/bin/sh", "-c", "[ -e " + mark + " ] && rm -r " + work + "; touch " + mark}}).Write(work); err != nil {
			t.Fatal(err)
		}
		if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- After(t.Context(), work) }()
		select {
		case err := <-done:
			t.Fatalf("it did not wait: %v", err)
		case <-time.After(50 * time.Millisecond):
		}
		if !killed {
			if err := os.RemoveAll(work); err != nil {
				t.Fatal(err)
			}
		}
		lock.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(work); err == nil {
			t.Error("the directory is there")
		}
		if _, err := os.Stat(mark); (err == nil) != killed {
			t.Errorf("killed %v: the order was run: %v", killed, err == nil)
		}
	}
}
