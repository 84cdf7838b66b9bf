package save

import (
	"slices"
	"time"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/format"
	"github.com/cryo-project/cryo/image/registry"
	"github.com/cryo-project/cryo/image/signature"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/runtime/gpu"
	"github.com/cryo-project/cryo/shim/config"
	"github.com/cryo-project/cryo/shim/restore"
)

// Options are the choices of a checkpoint.
type Options struct {
	Config config.Config
	// Address is that of containerd's socket.
	Address string
	// Container is an id, or the name that nerdctl has for it.
	Container string
	// Ref is what the snapshot is called in the local store, and where it is pushed.
	Ref string
	// LeaveRunning has the container go on. Otherwise it ends when the snapshot is safe.
	LeaveRunning bool
	// Remove says that the container will be removed, by [Result.Remove]: one is refused that another client has to remove.
	Remove bool
	// ReadyTimeout is how long the program may take to say that its snapshot may be taken; 0: it is not asked.
	ReadyTimeout time.Duration
	// What CRIU saves only if it is asked to.
	TCPEstablished, FileLocks, ExternalUnixSockets bool
	// Parent is the snapshot to share memory with; empty: the container's last; "none": none.
	Parent string
	// Compression and SegmentSize (bytes; 0: by the memory that the container has) are as in [image.PackOptions].
	Compression string
	SegmentSize int64
	// GPUTimeout is how long processes may take to end their work on GPUs; 0: as configured.
	GPUTimeout time.Duration
	// Force are rules of package runtime/gpu that are overridden.
	Force []string
	// GPUEngine is [image.DriverEngine] or [image.KeeperEngine]; empty: as the container was made.
	GPUEngine string
	// Push says how to reach the registry to which the snapshot is sent; nil: it is not sent.
	Push *registry.Options
	// SnapshotOnly has the name in the registry stand for the snapshot itself: no image is made of it.
	SnapshotOnly bool
	// Key signs the snapshot; nil: it is not signed. KeyFile is where it is from.
	Key     *signature.PrivateKey
	KeyFile string
	// Verify has the snapshot tried before it gets its name, and before the container ends: see [restore.Trial].
	Verify bool
	// Discard has the local store not keep the snapshot, whether it could be sent or not. Ref, which has a tag, is its name in the registry only.
	Discard bool
	// Logs is a directory that gets CRIU's log and statistics of the dump; empty: none does.
	Logs string

	restore.Hooks
}

// Check refuses choices that make no sense, before the container is touched. Its errors are of the kind InvalidArgument.
func (o Options) Check() error {
	wrong := func(format string, args ...any) error {
		return failure.New(errdefs.ErrInvalidArgument, "see cryo checkpoint --help", format, args...)
	}
	if registry.IsLocation(o.Ref) {
		return wrong("a snapshot is taken into the local store; use cryo push to write it to %s", o.Ref)
	}
	if _, err := store.Normalize(o.Ref); err != nil {
		return err
	}
	if o.Parent != "" && o.Parent != "none" {
		if _, err := store.Normalize(o.Parent); err != nil {
			return err
		}
	}
	switch {
	case o.SnapshotOnly && o.Push == nil:
		return wrong("only a snapshot that is pushed can be sent without an image")
	case o.Remove && o.LeaveRunning:
		return wrong("a container that goes on cannot be removed")
	case !slices.Contains([]string{"zstd", "none"}, o.Compression):
		return wrong("compression %q is neither zstd nor none", o.Compression)
	case o.SegmentSize != 0 && format.CheckSegmentSize(o.SegmentSize) != nil:
		return wrong("the segment size of %d bytes is not a power of two between 1 MiB and 8 GiB", o.SegmentSize)
	case o.ReadyTimeout < 0:
		return wrong("the time %s for a program to be ready is less than 0", o.ReadyTimeout)
	case o.GPUTimeout < 0 || o.GPUTimeout > time.Hour:
		return wrong("the GPU timeout %s is not between 0 and 1h", o.GPUTimeout)
	case !slices.Contains([]string{"", image.DriverEngine, image.KeeperEngine}, o.GPUEngine):
		return wrong("GPU engine %q is neither driver nor keeper", o.GPUEngine)
	}
	return gpu.CheckForce(o.Force)
}

// Result is a snapshot that is complete in the local store, and what became of the container.
type Result struct {
	Reference string            `json:"reference"`
	Digest    string            `json:"digest"`
	Container string            `json:"container"`
	Size      int64             `json:"size"`             // bytes of all blobs
	Parent    string            `json:"parent,omitempty"` // digest of the snapshot whose increment it is
	Shared    int64             `json:"shared,omitempty"` // bytes of blobs with memory that are the parent's
	Memory    int64             `json:"memory"`           // bytes in the container, zero pages included
	Freeze    float64           `json:"freeze"`           // seconds the container stood still
	Dump      float64           `json:"dump"`             // of which CRIU
	RootFS    float64           `json:"rootfs"`           // of which capture of the writable layer
	Pack      float64           `json:"pack"`             // afterwards
	GPU       *GPUSeconds       `json:"gpu,omitempty"`    // if it has GPUs
	Verify    *Verified         `json:"verify,omitempty"` // nil: it was not tried
	Running   bool              `json:"running"`
	Removed   bool              `json:"removed"`          // by [Result.Remove]
	Signed    string            `json:"signed,omitempty"` // fingerprint of the key
	Pushed    bool              `json:"pushed"`
	Push      *restore.Transfer `json:"push,omitempty"`
	Named
	Warnings []string `json:"warnings"`

	// MadeBy is the client that made the container, see [daemon.MadeBy].
	MadeBy string `json:"-"`

	asked Options // for hints
	lost  error   // why the container was lost, although there is a snapshot
}

// GPUSeconds are what device memory has taken of the freeze, seconds.
type GPUSeconds struct {
	Lock float64 `json:"lock"`           // until its processes had ended their work on GPUs
	Save float64 `json:"save"`           // moving device memory into memory
	Load float64 `json:"load,omitempty"` // and back, if it was left running
	// Devices is how long it took to take in what was handed over instead, Bytes how much that is. It is no part of the freeze,
	// or not all of it, where the GPUs had room for a copy.
	Devices float64 `json:"devices,omitempty"`
	Bytes   int64   `json:"bytes,omitempty"`
	// Precopy is how long device memory was copied while the container ran, where the GPUs have no room for a copy; it is no part of the freeze. Same is how many of Bytes had not changed afterwards.
	Precopy float64 `json:"precopy,omitempty"`
	Same    int64   `json:"same,omitempty"`
}
