package integration

import (
	"testing"
)

// TestBadReference names snapshots that there are not, or that are none.
func TestBadReference(t *testing.T) {
	a, _ := pair(t)
	id := name(t)
	start(t, a, id, nil, "workload", "count")
	unknown := shared.registry.Reference("bad/none:1")
	for _, test := range []struct {
		name, words string
		code        int
		args        []string
	}{
		{"checkpoint to no reference", "parse reference", codeUsage, []string{"checkpoint", id, "UPPER:case:twice"}},
		{"checkpoint to a file", "use cryo push", codeUsage, []string{"checkpoint", id, "oci-archive:/tmp/x.tar"}},
		{"push of no reference", "parse reference", codeUsage, []string{"push", "a//b"}},
		{"push of unknown", "no snapshot", codeNotFound, []string{"push", "bad/none:1"}},
		{"pull of no reference", "parse reference", codeUsage, []string{"pull", "a:b:c"}},
		{"pull of unknown repository", "the registry has no", codeNotFound, []string{"pull", unknown, "--plain-http"}},
		{"pull of unknown tag", "the registry has no", codeNotFound, []string{"pull", shared.registry.Reference("base:2"), "--plain-http"}},
		{"pull of an image", "not a cryo snapshot", codeDamaged, []string{"pull", shared.image, "--plain-http"}},
		{"restore of no reference", "parse reference", codeUsage, []string{"restore", "@sha256:1"}},
		{"restore of unknown", "the registry has no", codeNotFound, []string{"restore", unknown, "--plain-http"}},
		{"restore of unknown, here only", "no snapshot", codeNotFound, []string{"restore", unknown, "--pull", "never"}},
		{"restore of an image", "not a cryo snapshot", codeDamaged, []string{"restore", shared.image, "--plain-http"}},
		{"restore of no file", "", codeNotFound, []string{"restore", "oci-archive:/nowhere/x.tar"}},
		{"verify of unknown", "no snapshot", codeNotFound, []string{"verify", "bad/none:1"}},
		{"inspect of unknown", "the registry has no", codeNotFound, []string{"inspect", unknown, "--plain-http"}},
		{"rm of unknown", "no snapshot", codeNotFound, []string{"rm", "bad/none:1"}},
		{"unknown command", "there is no command", codeUsage, []string{"chekpoint", id}},
		{"unknown flag", "unknown flag", codeUsage, []string{"checkpoint", "--leave-runing", id, "bad/flag:1"}},
	} {
		t.Run(test.name, func(t *testing.T) { refused(t, a, test.code, test.words, test.args...) })
	}
	counts(t, a, id)
}

// reported is an error of cryo for programs.
type reported struct {
	Kind, Message, Hint, Container string
	ExitCode                       int
	Left                           struct {
		Running  bool
		Snapshot string
	}
}
