package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

func TestRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "prewarm.toml")
	read := func(text string) (Wanted, error) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		w, _, err := Read(path)
		return w, err
	}
	w, err := read("[budget]\ndisk = 7\ngpu = 8\n[[snapshot]]\nref = 'app'\n[[snapshot]]\nref = 'localhost:5000/b@sha256:" + strings.Repeat("0", 64) + "'\ngpu = true\ndevices = ['nvidia.com/gpu=0']\n")
	if err != nil || w.Budget != (Budget{7, 8}) || len(w.Snapshots) != 2 || w.index("docker.io/library/app:latest") != 0 || !w.Snapshots[1].GPU {
		t.Errorf("%+v, %v", w, err)
	}
	for text, says := range map[string]string{
		"snapshots = []": "strict mode", "[budget]\ndisk = -1": "budget.disk", "[budget]\ngpu = 2000000000000": "budget.gpu",
		"[[snapshot]]\nref = 'A B'":                               "reference",
		"[[snapshot]]\nref = 'a'\n[[snapshot]]\nref = 'a:latest'": "twice",
		"[[snapshot]]\nref = 'a'\ndevices = ['nvidia.com/gpu=0']": "gpu = true",
		"[[snapshot]]\nref = 'a'\ngpu = true\ndevices = ['0']":    "VENDOR/CLASS=NAME",
		"[[snapshot]]\nref = 'a'\ngpu = 'yes'":                    "",
		"[[snapshot]]\n":                                          "",
	} {
		if w, err := read(text); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %+v, %v", text, w, err)
		}
	}
	if _, err := read(""); err != nil {
		t.Error(err)
	}
	if _, _, err := Read(path + ".not"); !errdefs.IsInvalidArgument(err) {
		t.Error(err)
	}
}
