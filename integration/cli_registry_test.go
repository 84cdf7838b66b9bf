package integration

import (
	"strings"
	"testing"
)

// TestCLIInRegistry looks at a snapshot that only a registry has: what is said is what is said of one that is here, and nothing stays here.
func TestCLIInRegistry(t *testing.T) {
	a, b := pair(t)
	f := freeze(t, []string{"count", "--memory", "32"}, "--push", "--plain-http")
	here := decoded(t, a.Cryo(t.Context(), "inspect", f.ref, "--check", "--json"))
	next(t, b) // it collects what an earlier test has left
	unchanged(t, b, func() {
		there := decoded(t, b.Cryo(t.Context(), "inspect", f.ref, "--plain-http", "--check", "--json"))
		if there["inRegistry"] != true || there["fits"] != true || here["inRegistry"] != nil {
			t.Errorf("here %v, there %v, fits %v", here["inRegistry"], there["inRegistry"], there["fits"])
		}
		for _, key := range []string{"digest", "size"} {
			if there[key] != here[key] {
				t.Errorf("%s: %v, here %v", key, there[key], here[key])
			}
		}
		if out := must(t, b.Cryo(t.Context(), "inspect", f.ref, "--plain-http")).Stdout; !strings.Contains(out, "in the registry alone") || !strings.Contains(out, "workload") {
			t.Errorf("inspect:\n%s", out)
		}
		verified := decoded(t, b.Cryo(t.Context(), "verify", f.ref, "--plain-http", "--json"))
		if size, rest := verified["size"].(float64), verified["notRead"].(float64); size != here["size"] || rest <= size/2 || rest >= size {
			t.Errorf("verify: %v", verified)
		}
		if out := must(t, b.Cryo(t.Context(), "verify", f.ref, "--plain-http")).Stdout; !strings.Contains(out, "in the registry alone") {
			t.Errorf("verify:\n%s", out)
		}
		for _, command := range []string{"inspect", "verify"} {
			refusal(t, b.Cryo(t.Context(), command, f.ref+"x", "--plain-http"), codeNotFound, "the registry has no")
			refusal(t, b.Cryo(t.Context(), command, "app:warm"), codeNotFound, "no snapshot app:warm in the local store")
		}
	})
}
