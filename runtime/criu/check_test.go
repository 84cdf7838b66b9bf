package criu

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/failure"
)

func TestCheck(t *testing.T) {
	path := filepath.Join(t.TempDir(), "criu")
	missing := "CRIU is missing (" + path + "): "
	tests := []struct {
		name, script, says string
		ok                 bool
	}{
		{"new enough", "echo 'Version: 4.1.1'", "", true},
		{"too old", "echo 'Version: 3.17.1'", "CRIU 3.17.1 (" + path + ") is too old: ", false},
		{"does not run", "echo cannot; exit 127", missing, false},
		{"says nothing", "true", missing, false},
	}
	for i, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if err := os.WriteFile(path, []byte("#!/bin/sh\n"+test.script+"\n"), 0o700); err != nil {
				t.Fatal(err)
			}
			// The binary is asked anew only when it has changed.
			changed := time.Unix(int64(1000+i), 0)
			if err := os.Chtimes(path, changed, changed); err != nil {
				t.Fatal(err)
			}
			err := Check(path)
			switch {
			case test.ok && err != nil:
				t.Error(err)
			case !test.ok && (!errors.Is(err, errdefs.ErrFailedPrecondition) || !strings.HasPrefix(err.Error(), test.says) || failure.Hint(err) == ""):
				t.Errorf("got %v", err)
			}
		})
	}
	if err := Check(path + "-absent"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("absent: got %v", err)
	}
}

// TestCheckKilled: a CRIU that somebody has killed is not missing, and is asked again.
func TestCheckKilled(t *testing.T) {
	path := filepath.Join(t.TempDir(), "criu")
	script := "#!/bin/sh\n[ -e " + path + ".again ] && echo 'Version: 4.2.1' && exit\ntouch " + path + ".again\nkill -9 $$\n"
	if err := os.WriteFile(path, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Check(path); errdefs.IsFailedPrecondition(err) || !errors.Is(err, errdefs.ErrAborted) {
		t.Errorf("killed: got %v", err)
	}
	if err := Check(path); err != nil {
		t.Errorf("asked again: %v", err)
	}
}
