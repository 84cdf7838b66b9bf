package criu

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReason(t *testing.T) {
	tests := []struct{ name, log, want string }{
		{"none", "(00.027080) Looking good\n", ""},
		{"harmless only", "(00.027080) Error (criu/util.c:1533): rlimit: Can't setup RLIMIT_NOFILE for self: Operation not permitted\n", ""},
		{
			"cause before consequences",
			"(00.027080) Error (criu/util.c:1533): rlimit: Can't setup RLIMIT_NOFILE for self: Operation not permitted\n" +
				"(00.038615) Error (criu/files-reg.c:1790): Can't lookup mount=27 for fd=1 path=/var/log/x\n" +
				"(00.038627) Error (criu/cr-dump.c:1681): Dump files (pid: 17395) failed with -1\n" +
				"(00.114476) Error (criu/cr-dump.c:2111): Dumping FAILED.\n",
			"Can't lookup mount=27 for fd=1 path=/var/log/x (criu/files-reg.c:1790)",
		},
		{
			"with the process of a restore",
			"(00.115000)     24: Error (criu/files-reg.c:2211): File tmp/log has bad size 10 (expect 5)\n",
			"File tmp/log has bad size 10 (expect 5) (criu/files-reg.c:2211)",
		},
		{
			"of a program that CRIU executes",
			"Error (tar): write the image: no space left on device\n" +
				"(00.1) Error (criu/util.c:661): exited, status=2\n" +
				"(00.1) Error (criu/filesystems.c:388): Can't dump tmpfs content\n",
			"write the image: no space left on device (tar)",
		},
		{"consequence alone", "(00.1) Error (criu/cr-dump.c:2111): Dumping FAILED.\n", "Dumping FAILED. (criu/cr-dump.c:2111)"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "dump.log")
			if err := os.WriteFile(path, []byte(test.log), 0o600); err != nil {
				t.Fatal(err)
			}
			if got := Reason(path); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
	if got := Reason(filepath.Join(t.TempDir(), "absent")); got != "" {
		t.Errorf("a log that is not there says %q", got)
	}
}

func TestFull(t *testing.T) {
	for text, want := range map[string]bool{
		"": false, "(00.1) Error (criu/cr-dump.c:1): Dumping FAILED.\n": false,
		"Error (tar): write the image: no space left on device\n(00.1) Dumping FAILED.\n": true,
		"(00.1) Dumping proc": true,
	} {
		path := filepath.Join(t.TempDir(), "dump.log")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := Full(path); got != want {
			t.Errorf("%q: got %v", text, got)
		}
	}
	if Full(filepath.Join(t.TempDir(), "absent")) {
		t.Error("a log that is not there is full")
	}
}

func TestRestored(t *testing.T) {
	for text, want := range map[string]bool{
		"": false, "(00.2) Error (criu/cr-restore.c:1): Restoring FAILED.\n": false,
		"(00.270097) Restore finished successfully. Tasks resumed.\n(00.270127) Writing stats\n":        true,
		strings.Repeat("(00.1) x\n", 10000) + "(00.27) Restore finished successfully. Tasks resumed.\n": true,
	} {
		path := filepath.Join(t.TempDir(), "restore.log")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if Restored(path) != want {
			t.Errorf("%.60q: %v", text, !want)
		}
	}
	if Restored("/nonexistent") {
		t.Error("of no log")
	}
}

// TestRunID has the head of a log of CRIU 4.2 for runc: it makes a second id for the request, by which its network lock is called.
func TestRunID(t *testing.T) {
	for text, want := range map[string]string{
		"": "",
		"(00.000000) CRIU run id = 0fc0bbd9-760d-4b62-a62d-46d9ed3085f9\n(00.000000) CRIU run id = bb359337-8341-438a-a8d1-4122ddc64e29\n(00.000000) Version: 4.2.1 (gitid 0)\n(00.1) Dumping path /CRIU run id = 1\n": "bb359337-8341-438a-a8d1-4122ddc64e29",
		"(00.000000) Version: 4.2.1 (gitid 0)\n(00.000000) CRIU run id = 0fc0bbd9\n(00.000000) x\n":                                                                                                                    "0fc0bbd9",
	} {
		path := filepath.Join(t.TempDir(), "dump.log")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := RunID(path); got != want {
			t.Errorf("%q, not %q", got, want)
		}
	}
}
