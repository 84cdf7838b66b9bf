package integration

import (
	"testing"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
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
		{"inspect of unknown", "", codeNotFound, []string{"inspect", unknown}},
		{"rm of unknown", "no snapshot", codeNotFound, []string{"rm", "bad/none:1"}},
		{"unknown command", "there is no command", codeUsage, []string{"chekpoint", id}},
		{"unknown flag", "unknown flag", codeUsage, []string{"checkpoint", "--leave-runing", id, "bad/flag:1"}},
	} {
		t.Run(test.name, func(t *testing.T) { refused(t, a, test.code, test.words, test.args...) })
	}
	counts(t, a, id)
}

// TestBadRegistry names a registry that nobody runs, and one that does not let us in.
func TestBadRegistry(t *testing.T) {
	a, _ := pair(t)
	guarded, err := shared.lab.Registry(t.Context(), "bad-guarded", lab.RegistryOptions{Auth: lab.Basic})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := guarded.Stop(); err != nil {
			t.Error(err)
		}
	})
	closed, err := shared.lab.Registry(t.Context(), "bad-closed", lab.RegistryOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := closed.Stop(); err != nil {
		t.Fatal(err)
	}
	local := snapshotOf(t, a, "count")
	there, inside := closed.Reference("bad/x:1"), guarded.Reference("bad/x:1")
	for _, test := range []struct {
		name, words string
		code        int
		args        []string
	}{
		{"push to nobody", "cannot be reached", codeUnavailable, []string{"push", local, there, "--plain-http"}},
		{"pull from nobody", "cannot be reached", codeUnavailable, []string{"pull", there, "--plain-http"}},
		{"restore from nobody", "cannot be reached", codeUnavailable, []string{"restore", there, "--plain-http"}},
		{"push over TLS to plain HTTP", "speaks plain HTTP", codeUnavailable, []string{"push", local, shared.registry.Reference("bad/x:1")}},
		{"push without login", "wants a login", codeDenied, []string{"push", "--plain-http", local, inside}},
		{"push with a wrong password", "refuses the password", codeDenied, []string{"push", "--plain-http", "--user", "cryo:guess", local, inside}},
		{"pull without login", "wants a login", codeDenied, []string{"pull", "--plain-http", inside}},
		{"pull with a wrong password", "refuses the password", codeDenied, []string{"pull", "--plain-http", "--user", "cryo:guess", inside}},
		{"restore with a wrong password", "refuses the password", codeDenied, []string{"restore", "--plain-http", "--user", "cryo:guess", inside}},
	} {
		t.Run(test.name, func(t *testing.T) { refused(t, a, test.code, test.words, test.args...) })
	}
}

// TestBadPush takes a snapshot that cannot be sent: it is here all the same, and the container runs on.
func TestBadPush(t *testing.T) {
	a, _ := pair(t)
	id, ref := name(t), "127.0.0.1:1/bad/push:1"
	start(t, a, id, nil, "workload", "count")
	forget(t, a, ref)
	r := a.Cryo(t.Context(), "checkpoint", id, ref, "--leave-running", "--push")
	if r.Code != codeUnavailable {
		t.Errorf("exit code %d:\n%s", r.Code, r.Stderr)
	}
	must(t, a.Cryo(t.Context(), "verify", ref))
	counts(t, a, id)
}

// TestBadPushLater has a registry begin three seconds after the checkpoint that pushes to it: it gets the snapshot.
func TestBadPushLater(t *testing.T) {
	a, _ := pair(t)
	r, err := shared.lab.Registry(t.Context(), "bad-later", lab.RegistryOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Stop(); err != nil {
		t.Fatal(err)
	}
	id, ref := name(t), r.Reference("bad/later:1")
	start(t, a, id, nil, "workload", "count")
	forget(t, a, ref)
	ended := make(chan lab.Result, 1)
	go func() {
		ended <- a.Cryo(t.Context(), "checkpoint", id, ref, "--leave-running", "--push", "--plain-http")
	}()
	time.Sleep(3 * time.Second)
	if err := r.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Stop(); err != nil {
			t.Error(err)
		}
	})
	must(t, <-ended)
	must(t, a.Cryo(t.Context(), "rm", ref))
	must(t, a.Cryo(t.Context(), "pull", ref, "--plain-http"))
}
