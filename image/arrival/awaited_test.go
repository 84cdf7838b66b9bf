package arrival

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"
)

// TestAwaited: either the processes have all that they need, or what they are for is given up; and it stays so.
func TestAwaited(t *testing.T) {
	for name, settles := range map[string][]bool{"all": {true, true}, "some": {true, false}, "none": {false, false}, "nobody": {}} {
		dir := t.TempDir()
		work := filepath.Join(dir, "12")
		for _, d := range []string{work, filepath.Join(dir, "123.fill")} { // the other is another's
			if err := os.Mkdir(d, 0o700); err != nil {
				t.Fatal(err)
			}
		}
		var files []string
		whole := true
		for i, has := range settles {
			f, err := Expect(work, []string{"fill", "load"}[i])
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, f)
			if whole = whole && has; has {
				if err := settle(f); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
		}
		for range 2 {
			if awaited, err := GiveUp(work); err != nil || awaited == whole {
				t.Errorf("%s: awaited: %v, %v", name, awaited, err)
			}
		}
		for i, has := range settles {
			if err := settle(files[i]); whole && err != nil || !has && !errdefs.IsUnavailable(err) {
				t.Errorf("%s: again: %v", name, err)
			}
		}
		if err := Forget(work); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) != 2 {
			t.Errorf("%s: %d are left, %v", name, len(left), err)
		}
	}
}
