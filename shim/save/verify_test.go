package save

import (
	"errors"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/failure"
)

// TestRefused compares the error of a trial with its cause: kind, rule and hint are the same, where the cause has them.
func TestRefused(t *testing.T) {
	for _, test := range []struct {
		err  error
		kind error
		rule string
		hint string
	}{
		{errors.New("no reason"), errdefs.ErrAborted, "verify", "the container goes on"},
		{failure.New(errdefs.ErrDataLoss, "do this", "a segment is damaged"), errdefs.ErrDataLoss, "verify", "do this"},
		{failure.New(errdefs.ErrPermissionDenied, "", "it has too much").By("comparison"), errdefs.ErrPermissionDenied, "comparison", "the container goes on"},
		{failure.New(failure.ErrMisfit, "", "no AVX"), failure.ErrMisfit, "verify", "the container goes on"},
	} {
		err := refused(test.err)
		if !errors.Is(err, test.kind) || failure.Class(err) != test.rule || !strings.HasPrefix(failure.Hint(err), test.hint) || !strings.Contains(err.Error(), test.err.Error()) {
			t.Errorf("%v is %v, by %s, %s", test.err, err, failure.Class(err), failure.Hint(err))
		}
	}
}
