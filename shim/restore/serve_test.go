package restore

import (
	"testing"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/integration/storetest"
	"github.com/cryo-project/cryo/shim/config"
)

// TestAllowed: an annotation names only what the configuration allows, and says what to configure.
func TestAllowed(t *testing.T) {
	s := storetest.Open(t)
	own := storetest.MustPut(t, s, "r.example.com/prod/app:warm", storetest.Spec{Seed: 1}).Digest.String()
	foreign := storetest.MustPut(t, s, "r.example.com/other:1", storetest.Spec{Seed: 2}).Digest.String()
	a := config.Registries{Repositories: []string{"r.example.com/prod"}}
	for ref, want := range map[string]string{
		"r.example.com/prod/app:1": PullMissing, "r.example.com/prod/app": PullMissing, "r.example.com/prod/app:warm": PullMissing,
		"r.example.com/other:1": "", "app:1": "", "oci:/tmp/x": "", "oci-archive:/tmp/x.tar": "",
		"sha256:0000000000000000000000000000000000000000000000000000000000000000": "",

		own: PullMissing, "r.example.com/prod/app@" + own: PullMissing,
		foreign: "", "r.example.com/other@" + foreign: "",
		// The registry has to say that it is there.
		"r.example.com/prod/app@" + foreign: PullAlways, "r.example.com/prod/second@" + own: PullAlways,
	} {
		pull, err := allowed(t.Context(), s, a, ref)
		if pull != want || (err == nil) != (want != "") || err != nil && (!errdefs.IsPermissionDenied(err) || failure.Hint(err) == "") {
			t.Errorf("%s: %q, %v", ref, pull, err)
		}
	}
	if _, err := allowed(t.Context(), s, a, "\x00"); err == nil {
		t.Error("nonsense is allowed")
	}
}
