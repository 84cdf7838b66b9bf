package main

import (
	"net"
	"path/filepath"
	"strings"
	"testing"
)

// TestRestoreStartsNoTest has a daemon that takes connections, so that a restore comes to starting its process: it must not be the test's own program, which
// would run the tests again.
func TestRestoreStartsNoTest(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "c.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	code, _, says := cryo(t, "--address", socket, "restore", "registry.invalid/a:1")
	if code != exitOther || !strings.Contains(says, "start the restore process: exec: no command") {
		t.Errorf("exit code %d, and it says %s", code, says)
	}
}
