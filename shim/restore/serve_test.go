package restore

import (
	"testing"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/spec/failure"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/shim/config"
)

// TestAllowed: an annotation names only what the configuration allows, and says what to configure.
func TestAllowed(t *testing.T) {
	s, err := store.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	a := config.Policy{Repositories: []string{"r.example.com/prod"}}
	for ref, want := range map[string]bool{
		"r.example.com/prod/app:1": true, "r.example.com/prod/app": true,
		"r.example.com/other:1": false, "app:1": false, "oci:/tmp/x": false, "oci-archive:/tmp/x.tar": false,
		"sha256:0000000000000000000000000000000000000000000000000000000000000000": false,
	} {
		err := allowed(t.Context(), s, a, ref)
		if (err == nil) != want || !want && (!errdefs.IsPermissionDenied(err) || failure.Hint(err) == "") {
			t.Errorf("%s: %v", ref, err)
		}
	}
	if err := allowed(t.Context(), s, a, "\x00"); err == nil {
		t.Error("nonsense is allowed")
	}
}
