package guard

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/failure"
)

// TestSharingSupported looks at hosts with and without the kernel's search for equal pages.
func TestSharingSupported(t *testing.T) {
	for name, test := range map[string]struct {
		run string // empty: the kernel has no KSM
		is  func(error) bool
	}{
		"runs":    {"1\n", func(err error) bool { return err == nil }},
		"off":     {"0\n", errdefs.IsFailedPrecondition},
		"undoes":  {"2\n", errdefs.IsFailedPrecondition},
		"without": {"", errdefs.IsNotImplemented},
	} {
		root := t.TempDir()
		if test.run != "" {
			dir := filepath.Join(root, sharingDir)
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "run"), []byte(test.run), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		err := SharingSupported(root)
		if unix.Prctl(unix.PR_GET_MEMORY_MERGE, 0, 0, 0, 0) != nil { // Linux before 6.4
			if !errdefs.IsNotImplemented(err) {
				t.Errorf("%s: the error is %v on a kernel that cannot share memory", name, err)
			}
			continue
		}
		if !test.is(err) || (err != nil && failure.Hint(err) == "") {
			t.Errorf("%s: the error is %v, its hint %q", name, err, failure.Hint(err))
		}
	}
}

// TestShareAsDecided has this test's program do as the bundle says, and execute another, which is asked whether it shares memory.
func TestShareAsDecided(t *testing.T) {
	const inBundle = "CRYO_TEST_SHARING_BUNDLE"
	if bundle := os.Getenv(inBundle); bundle != "" {
		if err := shareAsDecided(bundle); err != nil {
			t.Fatal(err)
		}
		t.Fatal(unix.Exec("/bin/sh", []string{"sh", "-c", "echo; cat /proc/$$/smaps"}, nil))
	}
	if unix.Prctl(unix.PR_GET_MEMORY_MERGE, 0, 0, 0, 0) != nil {
		bundle := t.TempDir()
		if err := ShareMemory(bundle, true); err != nil {
			t.Fatal(err)
		}
		if err := shareAsDecided(bundle); err == nil {
			t.Error("this kernel cannot share memory, and there is no error")
		}
		return
	}
	bundle := t.TempDir()
	for _, share := range []bool{false, true, true, false, false} {
		if err := ShareMemory(bundle, share); err != nil {
			t.Fatal(err)
		}
		c := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$")
		c.Env = append(os.Environ(), inBundle+"="+bundle)
		out, err := c.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "[stack]") {
			t.Fatalf("%v: %s", err, out)
		}
		if does := strings.Contains(string(out), " mg"); does != share {
			t.Errorf("decided: %v, and its memory is shared: %v", share, does)
		}
	}
}
