package cryo

import (
	"context"
	"slices"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/registry"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/shim/daemon"
	"github.com/cryo-project/cryo/shim/worker"
)

// Runtime is the name of cryo's runtime that takes runc's options.
const Runtime = "io.containerd.runc.cryo.v1"

// RestoreOptions are the choices of a restore.
type RestoreOptions struct {
	// StartInstead starts the container if it turns out, before it has a task, that it cannot be restored. The event /cryo/restore/fallback has the reason. Without it, NewTask fails.
	StartInstead bool
	// Signal, such as "SIGUSR1", is sent to the container's first process once it runs. It ends a process that does not handle it.
	Signal string
	// Move restores the container as the one that goes on from the snapshot: its own has ended, and no other is restored from it. Memory that fork would wipe in a child
	// (madvise, MADV_WIPEONFORK) then stays. Otherwise it is wiped, so that no two clones have the same random state there.
	Move bool
}

// WithRestore is an option of containerd's client: the container's first task is restored from the snapshot ref instead of started. It comes after the option that makes the
// specification (containerd.WithNewSpec, containerd.WithSpec). A runtime that is not cryo's is replaced by [Runtime], and its options stay, which must be runc's.
//
// The container is the program's own: its specification, its root file system and its name. The host and the container must be such that the snapshot fits:
//   - The configuration of the host allows the snapshot's repository ([restore.policy]), and [trust] accepts its signature. The container's own specification says what the container
//     may have, and not the snapshot's. allow under [restore.policy] grants what the processes need beyond that.
//   - The root file system is new, and made by the overlayfs snapshotter (containerd.WithNewSnapshot) from the snapshot's base image, as [Client.Prewarm] unpacks and
//     [Client.Inspect] names it, or from the snapshot's own image.
//   - Mounts have the destinations and types that they had, and sources of the program's choice. User, namespaces, seccomp profile and terminal are as they were.
//   - GPUs are in the specification as CDI devices (cdi.WithCDIDevices). They may be others than the snapshot had; the order counts.
//   - The snapshot need not be on the host: what is missing is pulled, memory while the container runs.
//
// The error of NewTask or Start has the reason, with [Rule] and [Hint]. After an error of Start, the container and its task must be deleted, and made anew to start it without
// the snapshot. cmd/cryo/README.md has the rules.
func WithRestore(ref string, o RestoreOptions) containerd.NewContainerOpts {
	return func(_ context.Context, _ *containerd.Client, c *containers.Container) error {
		wrong := func(hint, format string, args ...any) error {
			return failure.New(errdefs.ErrInvalidArgument, hint, "restore container "+c.ID+": "+format, args...)
		}
		if registry.IsLocation(ref) {
			return wrong("pull it into the local store first, and name it by its reference", "%s is a file", ref)
		}
		if _, err := store.Normalize(ref); err != nil {
			return err
		}
		if o.Signal != "" && unix.SignalNum(o.Signal) == 0 {
			return wrong("write it as SIGUSR1", "there is no signal %q", o.Signal)
		}
		if c.Spec == nil {
			return wrong("let WithRestore come after containerd.WithNewSpec", "it has no specification yet")
		}
		var spec specs.Spec
		if err := typeurl.UnmarshalTo(c.Spec, &spec); err != nil {
			return wrong("", "read its specification: %w", err)
		}
		if spec.Annotations == nil {
			spec.Annotations = make(map[string]string)
		}
		spec.Annotations[worker.Annotation] = ref
		spec.Annotations[worker.FallbackAnnotation] = worker.FallbackFail
		if o.StartInstead {
			spec.Annotations[worker.FallbackAnnotation] = worker.FallbackStart
		}
		if o.Signal != "" {
			spec.Annotations[worker.SignalAnnotation] = o.Signal
		}
		delete(spec.Annotations, worker.AsAnnotation)
		if o.Move {
			spec.Annotations[worker.AsAnnotation] = worker.AsMove
		}
		changed, err := typeurl.MarshalAny(&spec)
		if err != nil {
			return wrong("", "write its specification: %w", err)
		}
		c.Spec = changed
		if !slices.Contains(daemon.RuntimeNames, c.Runtime.Name) {
			c.Runtime.Name = Runtime
		}
		return nil
	}
}
