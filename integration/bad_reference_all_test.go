package integration

import (
	"encoding/json"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// TestBadRegistry uses the address of a registry that is not running, and a registry that wants a password, without one.
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

// TestBadPush takes snapshots for registries that do not take them: that is found out before anything is frozen.
func TestBadPush(t *testing.T) {
	a, _ := pair(t)
	guarded := newRegistry(t, "bad-push", lab.RegistryOptions{Auth: lab.Basic})
	id := name(t)
	start(t, a, id, nil, "workload", "count")
	nobody, inside := "127.0.0.1:1/bad/push:1", guarded.Reference("bad/push:1")
	for _, test := range []struct {
		name, words string
		code        int
		args        []string
	}{
		{"to nobody", "cannot be reached", codeUnavailable, []string{nobody}},
		{"with a wrong password", "refuses the password", codeDenied, []string{inside, "--plain-http", "--user", lab.User + ":guess"}},
		{"without a password", "has no password", codeUsage, []string{inside, "--plain-http", "--user", lab.User}},
	} {
		t.Run(test.name, func(t *testing.T) {
			args := append([]string{"checkpoint", id, "--push"}, test.args...)
			refused(t, a, test.code, test.words, args...)
			counts(t, a, id)
			if names := must(t, a.Cryo(t.Context(), "ls", "-q")).Stdout; strings.Contains(names, test.args[0]) {
				t.Errorf("it is in the local store:\n%s", names)
			}
		})
	}
}

// TestBadPushError has the error of a checkpoint for programs.
func TestBadPushError(t *testing.T) {
	a, _ := pair(t)
	id := name(t)
	start(t, a, id, nil, "workload", "count")
	r := a.Cryo(t.Context(), "checkpoint", id, "127.0.0.1:1/bad/push:1", "--push", "--json")
	var said struct{ Error reported }
	if err := json.Unmarshal([]byte(r.Stdout), &said); err != nil {
		t.Fatalf("%v:\n%s", err, r.Stdout)
	}
	e := said.Error
	if e.Kind != "unavailable" || e.ExitCode != r.Code || e.Container != id || !e.Left.Running || e.Left.Snapshot != "" {
		t.Errorf("error: %+v", e)
	}
	if r.Stderr != "cryo: "+e.Message+"\nhint: "+strings.ReplaceAll(e.Hint, "\n", "\n  ")+"\n" {
		t.Errorf("error %q, hint %q, but on standard error:\n%s", e.Message, e.Hint, r.Stderr)
	}
}

// TestBadLogin types a password on a terminal. The terminal does not show it.
func TestBadLogin(t *testing.T) {
	a, _ := pair(t)
	guarded := newRegistry(t, "bad-login", lab.RegistryOptions{Auth: lab.Basic})
	local, inside := snapshotOf(t, a, "count"), guarded.Reference("bad/login:1")
	refused(t, a, codeUsage, "no terminal to ask for it", "push", local, inside, "--plain-http", "--user", lab.User)
	refused(t, a, codeUsage, "is empty", "push", local, inside, "--plain-http", "--user", lab.User+":", "--password-stdin")
	c := a.Command(t.Context(), "script", "--quiet", "--return", "--command", "cryo push "+local+" "+inside+" --plain-http -u "+lab.User, "/dev/null")
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan lab.Result, 1)
	go func() { ended <- lab.Finish(c) }()
	time.Sleep(2 * time.Second) // what is typed before the question is not an answer
	if _, err := io.WriteString(in, lab.Password+"\n"); err != nil {
		t.Fatal(err)
	}
	r := must(t, <-ended)
	if !strings.Contains(r.Stdout, "password of user "+lab.User+":") || strings.Contains(r.Stdout, lab.Password) || !strings.Contains(r.Stdout, "pushed ") {
		t.Errorf("on the terminal:\n%s", r.Stdout)
	}
	_ = in.Close() // script has ended
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
