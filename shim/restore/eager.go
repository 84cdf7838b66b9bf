package restore

import (
	"fmt"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/runtime/criu"
	"github.com/cryo-project/cryo/runtime/fill"
)

// forkedLimit is how much memory processes may have each for itself, in bytes, that they shared before.
const forkedLimit = 64 << 20

// eager returns why a container's memory is not filled in while it runs; empty: it is.
func (p *Plan) eager(o Options) string {
	if o.Eager {
		return "--eager"
	}
	if !o.Config.Restore.Lazy {
		return "restore.lazy is false in the configuration"
	}
	if err := fill.Supported(); err != nil {
		return err.Error()
	}
	if _, has := criu.NamespaceIn(p.Spec, specs.UserNamespace); has {
		return "it has a user namespace, in which the kernel gives no process a userfaultfd for running processes"
	}
	if forked := p.Unpacked.Forked(); forked > forkedLimit {
		return fmt.Sprintf("its processes share %.1f MiB since they were forked, of which each would have a copy", float64(forked)/(1<<20))
	}
	return ""
}
