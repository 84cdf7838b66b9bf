package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cryo-project/cryo/integration/lab"
)

// TestNodeInstall installs into the tree of a machine with a real containerd, which is asked in that tree, and a systemctl that does what it would do.
func TestNodeInstall(t *testing.T) {
	h := shared.a
	tree, from := filepath.Join(h.Dir, "machine"), filepath.Join(h.Dir, "image")
	put := func(to string, source string, mode os.FileMode) {
		t.Helper()
		data, err := os.ReadFile(source)
		if err != nil {
			data = []byte(source)
		}
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, data, mode); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		for _, dir := range []string{tree, from} {
			if err := os.RemoveAll(dir); err != nil {
				t.Error(err)
			}
		}
	})
	put(from+"/bin/cryo", "cryo", 0o755)
	put(from+"/share/containerd.toml", "../contrib/containerd/cryo.toml", 0o644)
	put(tree+"/usr/bin/containerd", shared.lab.Tool("containerd"), 0o755)
	put(tree+"/bin/sh", "/bin/busybox", 0o755)
	put(tree+"/usr/bin/systemctl", "#!/bin/sh\n[ \"$*\" = 'restart containerd' ] && : >/run/containerd/containerd.sock\n", 0o755)
	put(tree+"/run/containerd/containerd.sock", "", 0o600)
	install := func(more ...string) lab.Result {
		t.Helper()
		return h.Cryo(t.Context(), append([]string{"node", "install", "--host", tree, "--from", from}, more...)...)
	}

	// A configuration that imports nothing is not changed, and nothing is left for a day on which it does.
	main, dropIn := tree+"/etc/containerd/config.toml", tree+"/etc/containerd/conf.d/cryo.toml"
	put(main, "version = 3\nimports = []\n", 0o644)
	refusal(t, install(), codePrecondition, "does not take /etc/containerd/conf.d/cryo.toml")
	if _, err := os.Stat(dropIn); err == nil {
		t.Error("the file is left")
	}
	put(main, "version = 3\nimports = ['/etc/containerd/conf.d/*.toml']\n[plugins.'io.containerd.cri.v1.runtime'.containerd]\n  default_runtime_name = 'runc'\n", 0o644)
	refusal(t, install(), codePrecondition, "until it is restarted")
	if out := must(t, install("--restart")).Stdout; !strings.Contains(out, "restarted containerd") {
		t.Errorf("%s", out)
	}
	if out := must(t, install("--json")).Stdout; strings.Join(strings.Fields(out), "") != `{"changed":[],"restarted":false}` {
		t.Errorf("the second time: %s", out)
	}
	if text := read(t, dropIn); !strings.Contains(text, "runtime_path = '/opt/cryo/bin/containerd-shim-cryo-v1'") {
		t.Errorf("%s", text)
	}
	for _, wrong := range []string{"version = 3\nimports = ", fmt.Sprintf("version = 3\n[plugins.%q]\nsandbox = 1\n", "io.containerd.cri.v1.runtime")} {
		put(main, wrong, 0o644)
		refusal(t, install(), codePrecondition, "does not take")
	}
}
