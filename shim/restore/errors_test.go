package restore

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

// TestCutOffError: a container that has all its memory is not said to have ended.
func TestCutOffError(t *testing.T) {
	for _, c := range []struct {
		whole       bool
		words, hint string
	}{{true, "runs and has all its memory", "cryo pull"}, {false, "was ended", "--pull-first"}} {
		err := &CutOffError{Name: "a", Ran: true, Whole: c.whole, Err: errdefs.ErrUnavailable}
		if !strings.Contains(err.Error(), c.words) || !strings.Contains(err.Hint(), c.hint) {
			t.Errorf("%+v says %q and %q", c, err.Error(), err.Hint())
		}
	}
}
