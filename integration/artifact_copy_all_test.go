package integration

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cryo-project/cryo/integration/lab"
)

// TestArtifactCopy copies a snapshot from one registry to another with the tools people have. Its digest stays, and what
// is restored from the copy runs.
func TestArtifactCopy(t *testing.T) {
	a, b := pair(t)
	other := newRegistry(t, "copies", lab.RegistryOptions{})
	f := freeze(t, []string{"count", "--memory", "16", "--fill", "mixed"}, "--segment-size", "4MiB")
	must(t, a.Cryo(t.Context(), "push", f.ref, "--plain-http"))
	layout := "oci:" + filepath.Join(a.Dir, "tmp", f.id) + ":x"
	t.Cleanup(func() { a.Run(cleanupContext(t), "rm", "-rf", filepath.Join(a.Dir, "tmp", f.id)) })
	for _, test := range []struct {
		name  string
		steps []string // FROM and TO are references, LAYOUT a directory
	}{
		{"oras", []string{"oras cp --from-plain-http --to-plain-http FROM TO"}},
		{"crane", []string{"crane copy --insecure FROM TO"}},
		{"skopeo", []string{"skopeo copy --src-tls-verify=false --dest-tls-verify=false docker://FROM docker://TO --all"}},
		{"skopeo-layout", []string{
			"skopeo copy --src-tls-verify=false docker://FROM LAYOUT --all",
			"skopeo copy --dest-tls-verify=false LAYOUT docker://TO --all",
		}},
		{"ctr", []string{
			"ctr images pull --local --plain-http --all-platforms FROM",
			"ctr images tag FROM TO",
			"ctr images push --local --plain-http TO",
		}},
		{"ctr-transfer", []string{
			"ctr images pull --plain-http --all-platforms FROM",
			"ctr images tag --force FROM TO",
			"ctr images push --plain-http TO",
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			to := other.Reference(test.name + "/copy:1")
			away(t, to)
			t.Cleanup(func() { a.Ctr(cleanupContext(t), "images", "delete", f.ref, to) })
			for _, step := range test.steps {
				step = strings.NewReplacer("FROM", f.ref, "TO", to, "LAYOUT", layout).Replace(step)
				must(t, a.Run(t.Context(), slices.Collect(strings.FieldsSeq(step))...))
			}
			must(t, b.Cryo(t.Context(), "pull", to, "--plain-http"))
			if got := inspect(t, b, to).Digest; got != f.digest {
				t.Errorf("digest %s became %s", f.digest, got)
			}
			must(t, b.Cryo(t.Context(), "verify", to))
			pullBase(t, b)
			thaw(t, b, f, to)
		})
	}
}
