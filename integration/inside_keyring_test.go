package integration

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestInsideKeyring restores two containers of one snapshot. Each has a session keyring of its own, as one that runc starts, and none has the host's.
func TestInsideKeyring(t *testing.T) {
	a, b := pair(t)
	host, err := unix.KeyctlGetKeyringID(unix.KEY_SPEC_SESSION_KEYRING, false)
	if err != nil {
		t.Skip(err)
	}
	id, ref := name(t), shared.registry.Reference("inside/keyring:1")
	startImage(t, a, shared.image, id, nil, "workload", "keyring")
	keyrings := map[any]string{float64(host): "the host"}
	look := func(at string, state map[string]any) {
		t.Helper()
		if other, twice := keyrings[state["session"]]; twice {
			t.Errorf("%s has the session keyring of %s", at, other)
		}
		keyrings[state["session"]] = at
		if description, _ := state["description"].(string); !strings.HasPrefix(description, "keyring;0;0;") || !strings.Contains(description, ";_ses.") {
			t.Errorf("%s has the session keyring %q", at, description)
		}
	}
	look("the container", await(t, a, id).State)
	must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--push", "--plain-http"))
	for _, name := range []string{id + "-x", id + "-y"} {
		cleanup(t, b, name)
		must(t, b.Cryo(t.Context(), "restore", ref, "--plain-http", "--name", name))
		look(name, await(t, b, name).State)
	}
}
