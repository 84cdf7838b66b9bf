package main

import (
	"fmt"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/runtime/lazypages"
)

// forkedLimit is how much memory processes may have each for itself, in bytes, that they shared before.
const forkedLimit = 64 << 20

// eager says why a container's memory is not filled in while it runs; empty: it is.
func (a *app) eager(p *plan, f restoreFlags) (string, error) {
	if f.eager {
		return "--eager", nil
	}
	c, err := a.config()
	if err != nil {
		return "", err
	}
	if !c.Restore.Lazy {
		return "restore.lazy is false in the configuration", nil
	}
	if err := lazypages.Supported(); err != nil {
		return err.Error(), nil
	}
	if l := p.spec.Linux; l != nil && slices.ContainsFunc(l.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == specs.UserNamespace }) {
		return "it has a user namespace, in which the kernel gives nobody a userfaultfd for running processes", nil
	}
	if forked := p.unpacked.Forked(); forked > forkedLimit {
		return fmt.Sprintf("its processes share %s since they were forked, of which each would have a copy", size(forked)), nil
	}
	return "", nil
}
