package runc

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	gorunc "github.com/containerd/go-runc"
)

func TestForeign(t *testing.T) {
	dir := t.TempDir()
	root, bundle := filepath.Join(dir, "runc"), filepath.Join(dir, "bundle")
	for _, made := range []string{filepath.Join(root, "c"), bundle} {
		if err := os.MkdirAll(made, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(bundle, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		state   string // empty: none
		mark    string
		foreign string // what the error says
		wrong   bool
	}{
		"nothing yet":              {},
		"ours":                     {state: labelled("bundle=" + bundle)},
		"ours, with a mark":        {state: labelled("io.cryo.bundle=m", "bundle="+bundle), mark: "m"},
		"an annotation's name":     {state: labelled("bundle=/run/other/c", "bundle="+bundle)},
		"an earlier bundle's":      {state: labelled("io.cryo.bundle=l", "bundle="+bundle), mark: "m", foreign: "containerd does not know any more"},
		"one without a mark":       {state: labelled("bundle=" + bundle), mark: "m", foreign: "containerd does not know any more"},
		"ours by a link":           {state: labelled("bundle=" + filepath.Join(dir, "link"))},
		"without a bundle":         {state: labelled("other=1"), foreign: `""`},
		"another's":                {state: labelled("bundle=/run/other/c"), foreign: "/run/other/c"},
		"another's, with our name": {state: labelled("bundle=" + bundle + "2"), foreign: bundle + "2"},
		"half":                     {state: "{", wrong: true},
	} {
		path := filepath.Join(root, "c", "state.json")
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		if test.state != "" {
			if err := os.WriteFile(path, []byte(test.state), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		err := Container{ID: "c", Bundle: bundle, Mark: test.mark, Runtime: &gorunc.Runc{Root: root}}.Foreign()
		foreign := errdefs.IsAlreadyExists(err)
		if foreign != (test.foreign != "") || foreign && !strings.Contains(err.Error(), test.foreign) {
			t.Errorf("%s: %v", name, err)
		}
		if !foreign && (err != nil) != test.wrong {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func labelled(labels ...string) string {
	list, _ := json.Marshal(labels)
	return fmt.Sprintf(`{"id": "c", "config": {"labels": %s}}`, list)
}
