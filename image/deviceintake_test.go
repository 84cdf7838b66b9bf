package image

import "testing"

// TestDeviceIntakeDumped: when CRIU needs no core any more, all encode, unless there are so few that none does while processes stand still.
func TestDeviceIntakeDumped(t *testing.T) {
	for workers, want := range map[int]bool{1: false, 2: false, 3: true, 4: true, 16: true} {
		d, err := NewDeviceIntake(t.Context(), newMemoryStore(), t.TempDir(), nil, 4096, PackOptions{Workers: workers})
		if err != nil {
			t.Fatal(err)
		}
		all := func() bool {
			select {
			case <-d.in.hurried:
				return true
			default:
				return false
			}
		}
		if all() {
			t.Errorf("%d workers: all encode from the start", workers)
		}
		d.Dumped()
		if got := all(); got != want {
			t.Errorf("%d workers: all encode when CRIU has ended: %t, want %t", workers, got, want)
		}
		d.Hurry()
		if !all() {
			t.Errorf("%d workers: not all encode when nobody stands still any more", workers)
		}
		d.Close()
	}
}
