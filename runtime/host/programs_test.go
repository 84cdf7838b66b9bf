package host

import (
	"os"
	"path/filepath"
	"testing"
)

// TestKilledProgram: a program that somebody has killed is asked again.
func TestKilledProgram(t *testing.T) {
	path := filepath.Join(t.TempDir(), "criu")
	for name, test := range map[string]struct {
		script, want string
	}{
		"once":    {"[ -e " + path + ".once ] && echo 'Version: 4.2.1' && exit\ntouch " + path + ".once\nkill -9 $$\n", "4.2.1"},
		"always":  {"kill -9 $$\n", ""},
		"refuses": {"echo x >>" + path + ".refused\nexit 1\n", ""},
	} {
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+test.script), 0o700); err != nil {
			t.Fatal(err)
		}
		if version, err := CRIUVersion(t.Context(), path); version != test.want || (err == nil) != (test.want != "") {
			t.Errorf("%s: %q, %v", name, version, err)
		}
	}
	if asked, err := os.ReadFile(path + ".refused"); err != nil || string(asked) != "x\n" {
		t.Errorf("a program that fails by itself was asked %q times, %v", asked, err)
	}
}
