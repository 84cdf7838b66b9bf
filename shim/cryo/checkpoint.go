package cryo

import (
	"context"
	"time"

	"github.com/cryo-project/cryo/image/signature"
	"github.com/cryo-project/cryo/shim/restore"
	"github.com/cryo-project/cryo/shim/save"
)

// CheckpointOptions are the choices of a checkpoint. Fields that have the name of a flag of cryo checkpoint mean the same.
type CheckpointOptions struct {
	// LeaveRunning has the container go on. Without it, the container ends when the snapshot is safe on disk.
	LeaveRunning bool
	// Verify tries whether the snapshot can be restored. If not, there is no snapshot, and the container goes on.
	Verify bool
	// Push sends the snapshot to its registry, while it is taken. In the registry its name also stands for an ordinary image, unless SnapshotOnly is set.
	Push, SnapshotOnly bool
	Registry           Registry
	// SignKey is a file with a private key that signs the snapshot, and SignPassword its password.
	SignKey      string
	SignPassword []byte
	// ReadyTimeout is how long the container's program may take to say that its snapshot may be taken; 0: the snapshot is taken at once. The command has --when-ready for that.
	ReadyTimeout time.Duration
	// What is saved only if it is asked for.
	TCPEstablished, FileLocks, ExternalUnixSockets bool
	// Parent is the snapshot to share unchanged memory with, or "none". Default: the container's last.
	Parent string
	// Uncompressed stores memory as it is.
	Uncompressed bool
	// SegmentSize is how many bytes of memory a layer has, a power of two. Default: by the memory that the container has.
	SegmentSize int64
	// GPUTimeout is how long processes may take to end their work on GPUs. Default: as configured.
	GPUTimeout time.Duration
	// GPUEngine is "driver" or "keeper". Default: as the container was created.
	GPUEngine string
	// Force are rules about GPUs to override, or "all". The container may be lost.
	Force []string

	Hooks
}

// Checkpointed is a snapshot that is complete in the local store, and what became of its container.
type Checkpointed struct {
	Reference string // in full
	Digest    string
	Container string // id
	// Running reports whether the container runs.
	Running bool
	// Size is that of all blobs, Shared what of it is the parent's, and Memory that of the container; bytes.
	Size, Shared, Memory int64
	// Parent is the digest of the snapshot that shares memory with this one; empty: none does.
	Parent string
	// Frozen is how long the container stood still.
	Frozen time.Duration
	// Signed is the fingerprint of the key; empty: it is not signed.
	Signed string
	// Pushed is nil if the snapshot is not in its registry.
	Pushed *Pushed
	// Warnings were also passed to Hooks.
	Warnings []string
}

// Checkpoint takes a snapshot of a container, by its id or the name that nerdctl gave it, and keeps it as ref in the local store.
//
// If there is no result, there is no snapshot, and the container is as it was, or the error is [ErrLost]. If there is a result and an error, the snapshot is complete, and could not
// be signed or pushed, or the container is lost.
func (c *Client) Checkpoint(ctx context.Context, container, ref string, o CheckpointOptions) (*Checkpointed, error) {
	t := save.Options{
		Config: c.config, Container: container, Ref: ref, LeaveRunning: o.LeaveRunning,
		TCPEstablished: o.TCPEstablished, FileLocks: o.FileLocks, ExternalUnixSockets: o.ExternalUnixSockets,
		Parent: o.Parent, Compression: "zstd", SegmentSize: o.SegmentSize, ReadyTimeout: o.ReadyTimeout, GPUTimeout: o.GPUTimeout, GPUEngine: o.GPUEngine, Force: o.Force,
		SnapshotOnly: o.SnapshotOnly, KeyFile: o.SignKey, Verify: o.Verify || c.config.Dump.Verify && !o.LeaveRunning, Address: c.options.Address, Hooks: o.job(),
	}
	if o.Uncompressed {
		t.Compression = "none"
	}
	if o.Push {
		reg, err := o.Registry.options(c.config, o.Hooks)
		if err != nil {
			return nil, err
		}
		t.Push = &reg
	}
	if err := t.Check(); err != nil {
		return nil, err
	}
	if o.SignKey != "" {
		var err error
		if t.Key, err = signature.ReadPrivateKey(o.SignKey, func() ([]byte, error) { return o.SignPassword, nil }); err != nil {
			return nil, err
		}
	}
	environment, err := restore.Environment(c.store, c.options.ConfigFile)
	if err != nil {
		return nil, err
	}
	ctx, client, err := c.connect(ctx)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	r, err := save.Command{Options: t, Store: c.store, Client: client, Environment: environment}.Run(ctx)
	if r == nil {
		return nil, err
	}
	done := &Checkpointed{
		Reference: r.Reference, Digest: r.Digest, Container: r.Container, Running: r.Running, Size: r.Size, Shared: r.Shared, Memory: r.Memory, Parent: r.Parent,
		Frozen: seconds(r.Freeze), Signed: r.Signed, Warnings: r.Warnings,
	}
	if r.Pushed {
		done.Pushed = pushed(r.Digest, r.Push, &r.Named)
	}
	return done, err
}
