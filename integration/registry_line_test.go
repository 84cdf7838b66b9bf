package integration

import (
	"testing"

	"github.com/cryo-project/cryo/integration/lab"
)

// newLine is a line to a registry.
func newLine(t *testing.T, r *lab.Registry) *lab.Line {
	t.Helper()
	pullBases(t)
	l, err := shared.lab.Line(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}
