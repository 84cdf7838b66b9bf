package restore

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/failure"
)

// TestCutOff: a container that has all its memory is not said to have ended.
func TestCutOff(t *testing.T) {
	for _, c := range []struct {
		whole       bool
		words, hint string
	}{{true, "runs and has all its memory", "cryo pull"}, {false, "was ended", "--pull-first"}} {
		err := cutOff("a", true, c.whole, errdefs.ErrUnavailable)
		if !strings.Contains(err.Error(), c.words) || !strings.Contains(failure.Hint(err), c.hint) {
			t.Errorf("%+v says %q and %q", c, err.Error(), failure.Hint(err))
		}
	}
}
