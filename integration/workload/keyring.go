package main

import (
	"flag"
	"fmt"

	"golang.org/x/sys/unix"
)

// keyring is a process that says which session keyring it has.
type keyring struct{}

func startKeyring(flags *flag.FlagSet, args []string) (workload, error) {
	return keyring{}, flags.Parse(args)
}

func (keyring) Check() (map[string]any, error) {
	id, err := unix.KeyctlGetKeyringID(unix.KEY_SPEC_SESSION_KEYRING, false)
	if err != nil {
		return nil, fmt.Errorf("find the session keyring: %w", err)
	}
	description, err := unix.KeyctlString(unix.KEYCTL_DESCRIBE, id)
	if err != nil {
		return nil, fmt.Errorf("describe the session keyring: %w", err)
	}
	return map[string]any{"session": id, "description": description}, nil
}
