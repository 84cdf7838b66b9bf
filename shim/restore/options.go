package restore

import (
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/registry"
	"github.com/cryo-project/cryo/image/trust"
	"github.com/cryo-project/cryo/shim/config"
	"github.com/cryo-project/cryo/shim/worker"
)

// The values of [worker.Choices.Pull].
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
	Registry           registry.Options
	// Choices count but for what Registry, Policy and GPUs say.
	worker.Choices
	// Policy is what the snapshot may have of the host.
	Policy trust.Policy
	GPUs   GPUOptions
	// Spec is the container's own specification, by which the snapshot is confined; nil: it has the snapshot's, which Policy confines.
	Spec *specs.Spec
	// Placed are the mounts of Spec where they are in the container's root file system ([trust.PlaceMounts]); nil: that is not known.
	Placed []specs.Mount
	// Ordered: Spec was made from that of the snapshot with this digest, and is not compared with it. Else there is no digest.
	Ordered bool
	Digest  digest.Digest
	// Timeout is how long it may take until all but memory is here; 0: as long as it takes.
	Timeout time.Duration
	// Check, unless nil, may refuse the container's name and the snapshot's specification, before all else is decided.
	Check func(c image.Config, name string, spec *specs.Spec) error
}
