package integration

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/cryo-project/cryo/integration/storetest"
)

// TestCLIJSON has every command print JSON: one document, with these keys and no others, and nothing on standard error, but
// that nobody has signed what is restored.
func TestCLIJSON(t *testing.T) {
	a, b := pair(t)
	id, to := name(t), shared.registry.Reference("cli/json:1")
	startImage(t, a, shared.image, id, nil, "workload", "count")
	await(t, a, id)
	away(t, to)
	cleanup(t, b, id)
	key, _ := storetest.Key(t)
	for _, test := range []struct {
		name, keys string // keys of the document, or of the first element of a list
		onB        bool
		args       []string
	}{
		{"checkpoint", "container digest dump freeze memory pack pushed reference removed rootfs running size warnings", false, []string{"checkpoint", id, to}},
		{"ls", "container created digest image memory reference size", false, []string{"ls"}},
		{"ps", "container name pid status", false, []string{"ps"}},
		{"inspect", "asks config digest layers reference signatures size", false, []string{"inspect", to}},
		{"inspect --check", "asks config digest findings fits layers reference signatures size", false, []string{"inspect", to, "--check"}},
		{"verify", "asks digest reference size", false, []string{"verify", to}},
		{"sign", "already digest key reference where", false, []string{"sign", to, "--key", key}},
		{"push", "bytesMoved bytesThere digest image index reference retries seconds", false, []string{"push", to, "--plain-http"}},
		{"pull", "bytesMoved bytesThere digest reference retries seconds", true, []string{"pull", to, "--plain-http"}},
		{"restore", "complete container digest image lazy namespace pid reference running seconds warnings", true, []string{"restore", to, "--plain-http"}},
		{"df", "blobs free partial snapshots unknown unneeded working", false, []string{"df"}},
		{"prune", "busy dryRun partial unknown unneeded", false, []string{"prune", "--dry-run"}},
		{"rm", "freed reference", false, []string{"rm", to}},
		{"version", "config go platform version", false, []string{"version"}},
		{"doctor", "detail name status", false, []string{"doctor"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := a
			if test.onB {
				h = b
			}
			r := must(t, h.Cryo(t.Context(), append(test.args, "--json")...))
			if r.Stderr != "" && !(test.name == "restore" && strings.HasPrefix(r.Stderr, "warning: signature: ") && strings.Count(r.Stderr, "\n") == 1) {
				t.Errorf("on standard error:\n%s", r.Stderr)
			}
			document := map[string]any{}
			list := []map[string]any{}
			into := any(&document)
			if strings.HasPrefix(r.Stdout, "[") {
				into = &list
			}
			if err := json.Unmarshal([]byte(r.Stdout), into); err != nil {
				t.Fatalf("%v:\n%s", err, r.Stdout)
			}
			if len(list) > 0 {
				document = list[0]
			}
			delete(document, "commit") // known only where it was built from a repository
			if keys := strings.Join(slices.Sorted(maps.Keys(document)), " "); keys != test.keys {
				t.Errorf("keys are %s, want %s", keys, test.keys)
			}
		})
	}
	if out := must(t, a.Cryo(t.Context(), "--root", a.Dir+"/home/empty", "ls", "--json")).Stdout; out != "[]\n" {
		t.Errorf("an empty store lists as %q", out)
	}
}

// TestCLIText sees what people see: the important words are there.
func TestCLIText(t *testing.T) {
	a, _ := pair(t)
	f := freeze(t, []string{"count", "--memory", "4"})
	for _, test := range []struct {
		args, words []string
	}{
		{[]string{"ls"}, []string{"REFERENCE", f.ref, f.id, f.digest.String()[:19]}},
		{[]string{"ls", "-q"}, []string{f.ref}},
		{[]string{"ls", "--format", "{{.reference}} of {{.container}} has {{.memory}}{{.error}}."}, []string{" of " + f.id + " has "}},
		{[]string{"inspect", f.ref, "--format", "{{.config.container.id}} runs {{index .config.spec.process.args 0}}"}, []string{f.id + " runs workload\n"}},
		{[]string{"inspect", f.ref}, []string{f.digest.String(), shared.image, "workload", "segment-00000", "Needs:"}},
		{[]string{"inspect", f.ref, "--check"}, []string{f.ref + " fits this host"}},
		{[]string{"inspect", f.digest.String()}, []string{f.digest.String()}},
		{[]string{"verify", f.ref}, []string{f.digest.String(), "as they should be"}},
		{[]string{"version"}, []string{"cryo 0.1.0", "go1.", "linux/"}},
		{[]string{"doctor"}, []string{"kernel", "criu", "runc", "containerd", "cgroups", "gpu"}},
		{[]string{"rm", f.ref}, []string{"removed " + f.ref, "MiB freed"}},
	} {
		out := must(t, a.Cryo(t.Context(), test.args...)).Stdout
		for _, word := range test.words {
			if !strings.Contains(out, word) {
				t.Errorf("%s does not say %q:\n%s", strings.Join(test.args, " "), word, out)
			}
		}
	}
}
