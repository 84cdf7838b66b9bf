package integration

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// TestCLILogs shows what a restored container has printed since, follows it to its end, and attaches.
func TestCLILogs(t *testing.T) {
	a, b := pair(t)
	fresh, id, ref := name(t), name(t)+"-restored", shared.registry.Reference("cli/logs:1")
	startImage(t, a, shared.image, fresh, nil, "workload", "count")
	await(t, a, fresh)
	refused(t, a, codeNotFound, "no output of "+fresh+" is kept", "logs", fresh)
	must(t, a.Cryo(t.Context(), "checkpoint", fresh, ref, "--push", "--plain-http"))
	cleanup(t, b, id)
	must(t, b.Cryo(t.Context(), "restore", ref, "--plain-http", "--name", id))
	var out string
	eventually(t, "three lines", 30*time.Second, func() bool {
		out = must(t, b.Cryo(t.Context(), "logs", id)).Stdout
		return strings.Count(out, "\n") >= 3
	})
	for line := range strings.Lines(out) {
		if !strings.HasPrefix(line, "count ") || !strings.HasSuffix(line, "\n") {
			t.Errorf("a line is %q", line)
		}
	}
	if strings.Contains(out, "count 1\n") {
		t.Errorf("it counts from its start again:\n%s", out)
	}
	if one := must(t, b.Cryo(t.Context(), "logs", id, "--tail", "1")).Stdout; strings.Count(one, "\n") != 1 {
		t.Errorf("the last line is %q", one)
	}
	var document struct{ Container, Output string }
	if err := json.Unmarshal([]byte(must(t, b.Cryo(t.Context(), "logs", id, "--json")).Stdout), &document); err != nil || document.Container != id || !strings.HasPrefix(document.Output, out) {
		t.Errorf("%v: %+v", err, document)
	}
	if r := b.Cryo(t.Context(), "logs", id, "--follow", "--json"); r.Code != codeUsage || !strings.Contains(r.Stderr, "--follow does not end") {
		t.Errorf("--follow with --json: %d, %s", r.Code, r.Stderr)
	}

	attached, detach := context.WithTimeout(t.Context(), 3*time.Second)
	defer detach()
	attach := lab.Finish(b.Command(attached, "ctr", "tasks", "attach", id)).Stdout // it is killed
	if strings.Count(attach, "count ") < 2 {
		t.Errorf("who attaches sees %q", attach)
	}
	end := time.AfterFunc(2*time.Second, func() { b.Ctr(t.Context(), "tasks", "kill", "--signal", "KILL", id) })
	defer end.Stop()
	before := must(t, b.Cryo(t.Context(), "logs", id)).Stdout
	followed := must(t, b.Cryo(t.Context(), "logs", id, "--follow")).Stdout
	if all := must(t, b.Cryo(t.Context(), "logs", id)).Stdout; followed != all || len(followed) <= len(before) || !strings.HasPrefix(followed, before) {
		t.Errorf("followed:\n%s\nkept at the end:\n%s", followed, all)
	}
	if !strings.Contains(followed, attach[strings.Index(attach, "count "):]) {
		t.Errorf("what who attaches has seen is not kept:\n%s\nkept:\n%s", attach, followed)
	}
}
