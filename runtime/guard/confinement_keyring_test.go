package guard

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// onThread calls do on a thread that ends with it: credentials are a thread's.
func onThread[T any](do func() T) T {
	done := make(chan T)
	go func() {
		runtime.LockOSThread()
		done <- do()
	}()
	return <-done
}

// TestJoinKeyring: a container has a keyring of its own, unless the shim's options say that it gets none, and never one with keys in it.
func TestJoinKeyring(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not root")
	}
	if _, err := unix.KeyctlGetKeyringID(unix.KEY_SPEC_SESSION_KEYRING, false); err != nil {
		t.Skip(err)
	}
	session := func() int {
		id, err := unix.KeyctlGetKeyringID(unix.KEY_SPEC_SESSION_KEYRING, false)
		if err != nil {
			t.Error(err)
		}
		return id
	}
	join := func(name, options string) [2]int {
		bundle := filepath.Join(t.TempDir(), name)
		if err := os.Mkdir(bundle, 0o700); err != nil {
			t.Fatal(err)
		}
		if options != "" {
			if err := os.WriteFile(filepath.Join(bundle, "options.json"), []byte(options), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return onThread(func() (ids [2]int) {
			ids[0] = session()
			if err := joinKeyring(bundle, false); err != nil {
				t.Error(err)
			}
			ids[1] = session()
			return ids
		})
	}
	if ids := join("a", `{"no_new_keyring":false}`); ids[0] == ids[1] {
		t.Error("the keyring is the one that it was")
	}
	if ids := join("b", `{"no_new_keyring":true}`); ids[0] != ids[1] {
		t.Error("there is another keyring, though the options say that there is to be none")
	}
	// A keyring of this name, with a key.
	used := onThread(func() int {
		id, err := unix.KeyctlJoinSessionKeyring("_ses.taken")
		if err == nil {
			err = unix.KeyctlSetperm(id, 0x3f3f0000)
		}
		if err != nil {
			t.Error(err)
		}
		if _, err := unix.AddKey("user", "cryo-test", []byte("secret"), id); err != nil {
			t.Error(err)
		}
		if ids := join("taken", ""); ids[1] == id || ids[1] == ids[0] {
			t.Errorf("the keyring is %v, and another one's is %d", ids, id)
		}
		return id
	})
	if used == 0 {
		t.Error("there is no such keyring")
	}
}
