package guard

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// joinKeyring gives this process, and so CRIU and what it restores, a session keyring, as runc gives a container that it starts. Else all restored containers had that of who started
// containerd. runc gives none if the shim's option no_new_keyring is set. Source: runc, libcontainer/standard_init_linux.go, getSessionRingParams.
func joinKeyring(bundle string, userNamespace bool) error {
	without, err := withoutKeyring(bundle)
	if err != nil || without {
		return err
	}
	id, err := unix.KeyctlJoinSessionKeyring("_ses." + filepath.Base(bundle))
	if errors.Is(err, unix.ENOSYS) {
		return nil // the kernel has no keyrings
	}
	if err == nil && !unused(id) { // the name is that of a keyring which is not the container's
		id, err = unix.KeyctlInt(unix.KEYCTL_JOIN_SESSION_KEYRING, 0, 0, 0, 0) // a new one, without a name of its own
	}
	if err != nil {
		return fmt.Errorf("join a session keyring: %w", err)
	}
	const possessor, byUser, byOther = 0x3f000000, 0x80000, 0x8 // KEY_POS_ALL; what runc sets, with a user namespace the latter
	permissions := uint32(possessor | 0x30000 | byUser)         // the kernel's own: KEY_USR_VIEW, KEY_USR_READ
	if userNamespace {
		permissions |= byOther
	}
	if err := unix.KeyctlSetperm(id, permissions); err != nil {
		return fmt.Errorf("set the permissions of the session keyring: %w", err)
	}
	return nil
}

// unused reports whether a keyring is root's and has no keys.
func unused(id int) bool {
	description, err := unix.KeyctlString(unix.KEYCTL_DESCRIBE, id)
	if err != nil || !strings.HasPrefix(description, "keyring;0;0;") {
		return false
	}
	n, err := unix.KeyctlBuffer(unix.KEYCTL_READ, id, nil, 0)
	return err == nil && n == 0
}

// withoutKeyring reports whether the options of the shim for the container with this bundle say that it gets no keyring. Source: containerd, cmd/containerd-shim-runc-v2/runc, WriteOptions.
func withoutKeyring(bundle string) (bool, error) {
	data, err := os.ReadFile(filepath.Join(bundle, "options.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	var options struct {
		NoNewKeyring bool `json:"no_new_keyring"`
	}
	if err == nil {
		err = json.Unmarshal(data, &options)
	}
	if err != nil {
		return false, fmt.Errorf("read the shim's options: %w", err)
	}
	return options.NoNewKeyring, nil
}
