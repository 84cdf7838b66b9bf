package integration

import (
	"strings"
	"testing"
)

// TestCLIDebug has commands tell what they do: each stage and request with its time, and each process that is started.
func TestCLIDebug(t *testing.T) {
	a, _ := pair(t)
	id := name(t)
	ref := shared.registry.Reference("cli/" + id + ":1")
	start(t, a, id, nil, "workload", "count")
	for _, test := range []struct {
		args  []string
		words []string
	}{
		{[]string{"checkpoint", id, ref, "--push", "--plain-http"}, []string{
			"the container was examined", "the registry lets us push", "the container is frozen and dumped", "the snapshot is packed", "the snapshot is pushed",
			"method=PUT", "status=201", "request to containerd", "service=containerd.services.tasks.v1.Tasks",
		}},
		{[]string{"doctor"}, []string{"start a process", "program="}},
		{[]string{"restore", ref, "--plain-http"}, []string{"is found, fits, and is allowed", "the container runs", "method=GET", "start a process"}},
	} {
		if test.args[0] == "restore" {
			remove(t.Context(), a, id)
			must(t, a.Cryo(t.Context(), "rm", ref))
		}
		r := must(t, a.Cryo(t.Context(), append(test.args, "--debug")...))
		for _, words := range append(test.words, "level=debug") {
			if !strings.Contains(r.Stderr, words) {
				t.Errorf("%s says nothing of %q:\n%s", test.args[0], words, r.Stderr)
			}
		}
		for line := range strings.Lines(r.Stderr) {
			if test.args[0] != "doctor" && strings.Contains(line, "request to") && !strings.Contains(line, "took=") {
				t.Errorf("a request without its time: %s", line)
			}
		}
	}
}
