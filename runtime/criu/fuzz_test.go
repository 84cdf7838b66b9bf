package criu

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

// FuzzReadRecord reads what lies beside the images of any dump.
func FuzzReadRecord(f *testing.F) {
	f.Add([]byte(`{"tcpEstablished":true}`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, recordName), data, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadRecord(dir); err != nil && !errors.Is(err, errdefs.ErrDataLoss) {
			t.Error(err)
		}
	})
}

// FuzzReason reads logs of any kind.
func FuzzReason(f *testing.F) {
	f.Add("(00.038615) Error (criu/files-reg.c:1790): Can't lookup mount=27\n")
	f.Add("(00.1)     24: Error (a): b\n(00.2) Error (c): Dumping FAILED\n")
	f.Fuzz(func(t *testing.T, log string) {
		path := filepath.Join(t.TempDir(), "dump.log")
		if err := os.WriteFile(path, []byte(log), 0o600); err != nil {
			t.Fatal(err)
		}
		if reason := Reason(path); strings.Contains(reason, "\n") {
			t.Errorf("reason of several lines: %q", reason)
		}
	})
}
