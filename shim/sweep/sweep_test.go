package sweep

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestAfter: the order is run once the lock is free, unless the command has said that it ended, and until it has succeeded with the directory gone, whoever
// has removed that.
func TestAfter(t *testing.T) {
	for name, test := range map[string]struct {
		ended, swept bool
		runs         int
	}{
		"killed": {runs: 3},
		"killed, and somebody removes the directory": {swept: true, runs: 2},
		"ended by itself": {ended: true, swept: true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			work, runs := filepath.Join(dir, "work"), filepath.Join(dir, "runs")
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
			// The first time it fails.
			order := "echo >> " + runs + "; [ $(wc -l < " + runs + ") -gt 1 ] && rm -rf " + work
			if err := (Order{Args: []string{"/bin/sh", "-c", order}}).Write(work); err != nil {
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
			if test.ended {
				if _, err := lock.WriteString("ended"); err != nil {
					t.Fatal(err)
				}
			}
			if test.swept {
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
			data, err := os.ReadFile(runs)
			if err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
			if len(data) != test.runs {
				t.Errorf("the order was run %d times, not %d", len(data), test.runs)
			}
		})
	}
}
