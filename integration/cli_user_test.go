package integration

import (
	"os"
	"strings"
	"testing"

	"github.com/cryo-project/cryo/integration/lab"
)

// TestCLIUser has somebody else than root use cryo, and hear that it needs root.
func TestCLIUser(t *testing.T) {
	a, _ := pair(t)
	dir, err := os.MkdirTemp("", "cryo-user-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	must(t, a.Run(t.Context(), "sh", "-c", "cp $(command -v cryo) "+dir))
	config := dir + "/cryo.toml"
	if err := os.WriteFile(config, []byte("root = '"+dir+"/roots'\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	asUser := func(args ...string) lab.Result {
		return a.Run(t.Context(), append([]string{"env", "CRYO_CONFIG=" + config, "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", dir + "/cryo"}, args...)...)
	}
	own := dir + "/own"
	if err := os.Mkdir(own, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(own, 0o777); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"ls"}, {"rm", "a:1"}, {"inspect", "a:1"}, {"pull", "127.0.0.1:1/a:1"}, {"checkpoint", "a", "a:1"}, {"restore", "a:1"}, {"prewarm", "ls"},
		{"checkpoint", "a", "a:1", "--root", own},
	} {
		refusal(t, asUser(args...), codeDenied, "permission denied")
		if said := asUser(args...).Stderr; !strings.Contains(said, "hint: run cryo as root") {
			t.Errorf("%s does not say what is missing:\n%s", args, said)
		}
	}
	must(t, asUser("ls", "--root", own))
	if err := os.Chmod(config, 0o600); err != nil {
		t.Fatal(err)
	}
	refusal(t, asUser("ls"), codeDenied, "read configuration")
	if err := os.Chmod(config, 0o644); err != nil {
		t.Fatal(err)
	}
	r := asUser("doctor")
	if r.Code != codePrecondition || !strings.Contains(r.Stdout, "not root") {
		t.Errorf("doctor: exit code %d:\n%s", r.Code, r.Stdout)
	}
	for _, rights := range []string{"not in the kernel", "setcap"} {
		if strings.Contains(r.Stdout, rights) {
			t.Errorf("doctor says %q of what it may not see:\n%s", rights, r.Stdout)
		}
	}
}
