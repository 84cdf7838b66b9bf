package config

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/cryo-project/cryo/runtime/criu"
	"github.com/cryo-project/cryo/runtime/guard"
)

// privateCRIU is where contrib/criu/install puts CRIU on distributions whose own does not run.
const privateCRIU = "/opt/cryo/criu/bin/criu"

// FindCRIU returns the criu binary to use: the configured one, the one in PATH, or the private one, which also goes before
// one in PATH that is too old.
func (c Config) FindCRIU() (string, error) {
	if c.CRIU != "" {
		if _, err := os.Stat(c.CRIU); err != nil {
			return "", criu.Missing(c.CRIU, err)
		}
		return c.CRIU, nil
	}
	path, err := guard.FindProgram(guard.CRIUName)
	_, statErr := os.Stat(privateCRIU)
	switch {
	case err == nil && (statErr != nil || path == privateCRIU || criu.Check(path) == nil):
		return path, nil
	case statErr == nil:
		return privateCRIU, nil
	}
	return "", criu.Missing(guard.CRIUName, err)
}

// CheckCRIU finds the criu binary and makes sure that it runs and is new enough.
func (c Config) CheckCRIU() (path string, err error) {
	if path, err = c.FindCRIU(); err != nil {
		return "", err
	}
	return path, criu.Check(path)
}

// ExportPath puts the directory of the criu binary at path first in this process's PATH, where runc, its child, looks for it.
func ExportPath(path string) error {
	if first, err := guard.FindProgram(guard.CRIUName); err == nil && first == path {
		return nil
	}
	return os.Setenv("PATH", strings.TrimSuffix(filepath.Dir(path)+string(filepath.ListSeparator)+os.Getenv("PATH"), string(filepath.ListSeparator)))
}

// CRIUOptions are the options of every dump and restore.
func (c Config) CRIUOptions() criu.Options {
	// CRIU 4.1.1 crashes on any network-lock in a configuration file it gets from runc, so only what must be said is said.
	lock := c.Dump.NetworkLock
	if lock == "" && !installed("iptables-restore") { // nftables needs no program: CRIU has the library
		lock = "nftables"
	}
	return criu.Options{
		GhostLimit:  c.Dump.GhostLimit << 20,
		Timeout:     time.Duration(c.Dump.Timeout) * time.Second,
		NetworkLock: lock,

		InotifyPaths: c.Dump.InotifyPaths,
	}
}

func installed(program string) bool {
	_, err := exec.LookPath(program)
	return err == nil
}
