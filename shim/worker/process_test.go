package worker

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// TestSweep: whoever waits for the end of a process that was killed finds its working directory gone, also where it is just being removed.
func TestSweep(t *testing.T) {
	work := filepath.Join(t.TempDir(), "work")
	if err := errors.Join(os.Mkdir(work, 0o700), os.WriteFile(filepath.Join(work, "lock"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	for i := range 500 {
		if err := os.WriteFile(filepath.Join(work, fmt.Sprint(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p := &Process{work: work}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			p.sweep()
			if _, err := os.Stat(work); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("left: %v", err)
			}
		})
	}
	all.Wait()
}
