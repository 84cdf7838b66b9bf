package restore

import (
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/registry"
	"github.com/cryo-project/cryo/image/trust"
	"github.com/cryo-project/cryo/shim/config"
	"github.com/cryo-project/cryo/shim/restorer"
)

// The values of [Options.Pull].
const (
	PullMissing = "missing"
	PullAlways  = "always"
	PullNever   = "never"
)

// Options are the choices of a restore.
type Options struct {
	Config config.Config
	// Name is the container's; empty: the one that it had.
	Name string
	// Namespace and Address are containerd's.
	Namespace, Address string
	// Pull says whether the snapshot is fetched: missing, unless it is in the local store; always; or never.
	Pull     string
	Registry registry.Options
	// Mounts give bind mounts other sources, which are granted by that.
	Mounts []restorer.Mount
	// NetworkNS is the path of the network namespace to use, where the container had one with a path; empty: the same path.
	NetworkNS string
	// Policy is what the snapshot may have of the host.
	Policy trust.Policy
	// Force are rules of package fit that are overridden.
	Force []string
	GPUs  GPUOptions
	// Eager reads all memory before the container runs. PullFirst pulls it before.
	Eager, PullFirst bool
	// Spec is the container's own specification, by which the snapshot is confined; nil: it has the snapshot's, which Policy confines.
	Spec *specs.Spec
	// Timeout is how long it may take until all but memory is here; 0: as long as it takes.
	Timeout time.Duration
	// Check, unless nil, may refuse the container's name and the snapshot's specification, before all else is decided.
	Check func(c image.Config, name string, spec *specs.Spec) error
}
