package registry

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/integration/storetest"
)

// TestTaken: a layout does not decide what a name means in the store, and who imports it does.
func TestTaken(t *testing.T) {
	src, dst := storetest.Open(t), storetest.Open(t)
	theirs := storetest.MustPut(t, src, "app:v1", storetest.Spec{Seed: 1, Segments: []uint64{1}})
	ours := storetest.MustPut(t, dst, "app:v1", storetest.Spec{Seed: 2, Segments: []uint64{2}})
	at := "oci:" + t.TempDir() + "/layout"
	if err := Export(t.Context(), src, theirs, "app:v1", at); err != nil {
		t.Fatal(err)
	}
	_, _, err := Import(t.Context(), dst, at, nil, false)
	if !errdefs.IsAlreadyExists(err) {
		t.Fatalf("Import = %v", err)
	}
	_, name, _ := strings.Cut(failure.Hint(err), "cryo rm ")
	if d, err := dst.Resolve(t.Context(), name); err != nil || d.Digest != ours.Digest {
		t.Errorf("the name is of %v, %v", d, err)
	}
	if _, _, err := Import(t.Context(), dst, at+":app:v1", nil, false); err != nil {
		t.Errorf("by its name: %v", err)
	}
	if d, err := dst.Resolve(t.Context(), name); err != nil || d.Digest != theirs.Digest {
		t.Errorf("then the name is of %v, %v", d, err)
	}
}
