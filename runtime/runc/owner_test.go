package runc

import (
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
		foreign string // bundle of whose it is
		wrong   bool
	}{
		"nothing yet":              {},
		"ours":                     {state: labelled("bundle=" + bundle)},
		"ours by a link":           {state: labelled("bundle=" + filepath.Join(dir, "link"))},
		"without a bundle":         {state: labelled("other=1")},
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
		err := Container{ID: "c", Bundle: bundle, Runtime: &gorunc.Runc{Root: root}}.Foreign()
		foreign := errdefs.IsAlreadyExists(err)
		if foreign != (test.foreign != "") || foreign && !strings.Contains(err.Error(), test.foreign) {
			t.Errorf("%s: %v", name, err)
		}
		if !foreign && (err != nil) != test.wrong {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func labelled(label string) string {
	return fmt.Sprintf(`{"id": "c", "config": {"labels": [%q]}}`, label)
}
