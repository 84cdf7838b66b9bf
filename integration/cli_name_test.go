package integration

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/cryo-project/cryo/integration/lab"
)

// TestCLIRestoreName restores under the name the container had, under another, and not under one that is taken or none.
func TestCLIRestoreName(t *testing.T) {
	_, b := pair(t)
	f := freeze(t, []string{"count"}, "--push", "--plain-http")
	other := f.id + "-other"
	cleanup(t, b, f.id)
	cleanup(t, b, other)
	if out := must(t, b.Cryo(t.Context(), "restore", f.ref, "--plain-http", "--wait")).Stdout; out != f.id+"\n" {
		t.Errorf("restore printed %q", out)
	}
	goneOn(t, f.before, await(t, b, f.id))
	refused(t, b, codeExists, f.id, "restore", f.ref)
	refused(t, b, codeExists, f.id, "restore", f.ref, "--name", f.id)
	refused(t, b, codeUsage, "no name", "restore", f.ref, "--name", "no name")
	must(t, b.Cryo(t.Context(), "restore", f.ref, "--name", other))
	for _, id := range []string{f.id, other} {
		counts(t, b, id)
	}
}

// TestCLIRestoreStreams restores a process that had pipes as its streams with none given: it can still write, does not
// read the end of its input, and can be frozen again.
func TestCLIRestoreStreams(t *testing.T) {
	a, b := pair(t)
	id := name(t)
	var s streams
	task := created(t, a, id, cryoRuntime, nil, s.creator(a), nil, "workload", "terminal")
	if err := task.Start(inDefault(t)); err != nil {
		t.Fatal(err)
	}
	before := await(t, a, id)
	refs := []string{shared.registry.Reference("artifact/" + id + ":1"), shared.registry.Reference("artifact/" + id + ":2")}
	cleanup(t, b, id)
	for i, h := range []*lab.Host{a, b} {
		away(t, refs[i])
		must(t, h.Cryo(t.Context(), "checkpoint", id, refs[i], "--push", "--plain-http"))
		if i == 0 {
			if err := b.Import(t.Context()); err != nil {
				t.Fatal(err)
			}
			must(t, b.Cryo(t.Context(), "restore", refs[i], "--plain-http", "--wait"))
			after := await(t, b, id)
			goneOn(t, before, after)
			pid, _, err := b.Task(t.Context(), id)
			stdout, linkErr := os.Readlink(fmt.Sprintf("/proc/%d/fd/1", pid))
			if err != nil || linkErr != nil || !strings.HasPrefix(stdout, "pipe:") || after.State["ended"] != false {
				t.Errorf("standard output is %s, end of standard input %v (%v, %v)", stdout, after.State["ended"], err, linkErr)
			}
		}
	}
}

// TestCLIDigestPrefix names a snapshot by the beginning of its digest, and one by a name that says no registry.
func TestCLIDigestPrefix(t *testing.T) {
	a, _ := pair(t)
	f := freeze(t, []string{"count"})
	begins := f.digest.Encoded()[:12]
	for _, ref := range []string{begins, "sha256:" + begins} {
		if got := inspect(t, a, ref).Digest; got != f.digest {
			t.Errorf("%s is %s, want %s", ref, got, f.digest)
		}
		must(t, a.Cryo(t.Context(), "verify", ref))
	}
	cleanup(t, a, f.id)
	must(t, a.Cryo(t.Context(), "restore", begins, "--pull", "never"))
	goneOn(t, f.before, await(t, a, f.id))
	must(t, a.Cryo(t.Context(), "rm", begins))
	refusal(t, a.Cryo(t.Context(), "inspect", begins), codeNotFound, "no snapshot")
	r := a.Cryo(t.Context(), "pull", "nobody/has:this")
	if r.Code == 0 || !strings.HasPrefix(r.Stderr, "warning: nobody/has:this names no registry: docker.io is asked for docker.io/nobody/has:this\n") {
		t.Errorf("exit code %d:\n%s", r.Code, r.Stderr)
	}
}
