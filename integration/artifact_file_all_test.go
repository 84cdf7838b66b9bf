package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestArtifactFile writes a snapshot to an OCI layout and to a tar archive of one, and restores it from there on the other
// host. skopeo reads what cryo writes and the other way round.
func TestArtifactFile(t *testing.T) {
	a, b := pair(t)
	f := freeze(t, []string{"count", "--memory", "16", "--fill", "mixed"})
	dir := filepath.Join(a.Dir, "home", f.id) // what both hosts can read
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	for _, test := range []struct {
		name, to string
		copy     string // made of it by skopeo
	}{
		{"layout", "oci:DIR/layout:warm", "oci-archive:DIR/layout-copy.tar:warm"},
		{"archive", "oci-archive:DIR/archive.tar:warm", "oci:DIR/archive-copy:warm"},
	} {
		t.Run(test.name, func(t *testing.T) {
			to, copied := strings.Replace(test.to, "DIR", dir, 1), strings.Replace(test.copy, "DIR", dir, 1)
			must(t, a.Cryo(t.Context(), "push", f.ref, to))
			raw := must(t, a.Run(t.Context(), "skopeo", "inspect", "--raw", to)).Stdout
			if f.digest.Algorithm().FromString(raw) != f.digest {
				t.Errorf("skopeo sees another manifest:\n%s", raw)
			}
			must(t, a.Run(t.Context(), "skopeo", "copy", to, copied))
			for _, from := range []string{to, copied} {
				ref := strings.Fields(must(t, b.Cryo(t.Context(), "pull", from)).Stdout)[1]
				if got := inspect(t, b, ref).Digest; got != f.digest {
					t.Errorf("digest %s became %s by way of %s", f.digest, got, from)
				}
				must(t, b.Cryo(t.Context(), "rm", ref))
				pullBase(t, b)
				thaw(t, b, f, from)
				must(t, b.Cryo(t.Context(), "rm", ref))
			}
		})
	}
}
