package registry

import (
	"testing"

	"github.com/cryo-project/cryo/integration/storetest"
)

// TestDevices: device memory comes back from a registry bit for bit.
func TestDevices(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	s := storetest.Open(t)
	d, contents := storetest.PutDevices(t, s, f.ref("llm:1"))
	if err := Push(t.Context(), s, f.ref("llm:1"), d, fast()); err != nil {
		t.Fatal(err)
	}
	storetest.SameDevices(t, pulled(t, f, "llm:1", d), d, contents)
}
