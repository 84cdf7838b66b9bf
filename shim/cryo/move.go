package cryo

import (
	"context"
	"path/filepath"
	"time"

	"github.com/cryo-project/cryo/image/registry"
	"github.com/cryo-project/cryo/runtime/gpu"
	"github.com/cryo-project/cryo/shim/config"
	"github.com/cryo-project/cryo/shim/restore"
	"github.com/cryo-project/cryo/shim/save"
)

// PushOptions are the choices of a push.
type PushOptions struct {
	Registry Registry
	// SnapshotOnly has the name in the registry stand for the snapshot alone: no image is made that other clients run.
	SnapshotOnly bool

	Hooks
}

// Pushed is a snapshot that was sent.
type Pushed struct {
	Digest string
	// Transfer is nil if the snapshot was written to a file.
	Transfer *Transfer
	// Index is the digest of what the name stands for in the registry, which lists the snapshot and Image. Both are empty if the name stands for the snapshot alone.
	Index, Image string
	// NoImage is why no image could be made, unless none was asked for.
	NoImage string
}

func pushed(digest string, t *restore.Transfer, n *save.Named) *Pushed {
	p := &Pushed{Digest: digest, Transfer: transfer(t)}
	if n != nil {
		p.Index, p.Image, p.NoImage = n.Index, n.Image, n.NoImage
	}
	return p
}

// Push sends the snapshot ref of the local store to a name in a registry, or into a file: oci:DIRECTORY or oci-archive:FILE. An empty destination is ref.
func (c *Client) Push(ctx context.Context, ref, destination string, o PushOptions) (*Pushed, error) {
	reg, err := o.Registry.options(c.config, o.Hooks)
	if err != nil {
		return nil, err
	}
	if destination == "" {
		destination = ref
	}
	p, err := save.Push(ctx, c.store, ref, destination, save.PushOptions{Registry: reg, SnapshotOnly: o.SnapshotOnly, Containerd: c.daemon(ctx), Warn: o.warn})
	if err != nil {
		return nil, err
	}
	return pushed(p.Digest, p.Transfer, p.Named), nil
}

// PullOptions are the choices of a pull.
type PullOptions struct {
	Registry Registry
	// RequireSignature refuses a snapshot that no key of [trust] in the configuration has signed, by the rule "signature", whatever the configuration says.
	RequireSignature bool
	// Repair verifies what is in the local store already, and fetches again what is damaged.
	Repair bool

	Hooks
}

// Pulled is a snapshot that is complete in the local store.
type Pulled struct {
	Reference, Digest string
	// Transfer is nil if the snapshot was read from a file.
	Transfer *Transfer
}

// Pull fetches a snapshot from a registry, or from a file as [Client.Push] writes it, into the local store.
func (c *Client) Pull(ctx context.Context, ref string, o PullOptions) (*Pulled, error) {
	reg, err := o.Registry.options(c.config, o.Hooks)
	if err != nil {
		return nil, err
	}
	reg.Repair = o.Repair
	j, err := restore.NewJudging(c.config.Trust, config.Person, o.RequireSignature)
	if err != nil {
		return nil, err
	}
	p, err := restore.Pull(ctx, c.store, ref, reg, j)
	if err != nil {
		return nil, err
	}
	return &Pulled{Reference: p.Reference, Digest: p.Digest, Transfer: transfer(p.Transfer)}, nil
}

// PrewarmOptions are the choices of getting a snapshot ready.
type PrewarmOptions struct {
	Registry Registry
	// RequireSignature is as in [PullOptions].
	RequireSignature bool
	// Always asks the registry also if the local store has a snapshot of the name.
	Always bool
	// Snapshotter is containerd's for the base image. Default: the one that the snapshot's container had, if it is here.
	Snapshotter string
	// OnGPU also loads device memory that the engine keeper has saved onto GPUs. The next restore that gets these GPUs uses it up. Devices are the CDI devices that restores will
	// be given, by default those that the snapshot's container had.
	OnGPU   bool
	Devices []string

	Hooks
}

// Prewarmed is a snapshot of which nothing must be fetched for a restore.
type Prewarmed struct {
	Reference, Digest string
	// Size is that of all blobs, bytes.
	Size int64
	// Already reports whether it was prewarmed before.
	Already bool
	// Image is the name of the base image in containerd, for [WithRestore].
	Image string
	// Removed are the references of snapshots that were removed to make room: see [prewarm] in the configuration.
	Removed []string
	// Transfer is nil if nothing had to be fetched.
	Transfer *Transfer
}

// Prewarm gets a snapshot ready for a restore: pulled, verified, its base image unpacked in containerd, and its files in the page cache.
func (c *Client) Prewarm(ctx context.Context, ref string, o PrewarmOptions) (*Prewarmed, error) {
	reg, err := o.Registry.options(c.config, o.Hooks)
	if err != nil {
		return nil, err
	}
	var counts registry.Counts
	reg.Counts = &counts
	p := restore.PrewarmOptions{
		Ref: ref, Pull: restore.PullMissing, DiskBudget: c.config.Prewarm.Disk << 20, Registry: reg, Snapshotter: o.Snapshotter, Connect: c.connect, Warn: o.warn,
	}
	if o.Always {
		p.Pull = restore.PullAlways
	}
	if o.OnGPU {
		if err := gpu.ValidateDevices(o.Devices); err != nil {
			return nil, err
		}
		program, err := c.program()
		if err != nil {
			return nil, err
		}
		p.OnGPU, p.GPU, p.GPUBudget = true, c.config.GPU, c.config.Prewarm.GPU<<20
		p.GPUs = restore.GPUOptions{Devices: o.Devices, Programs: filepath.Dir(program)}
	}
	if p.Judging, err = restore.NewJudging(c.config.Trust, config.Person, o.RequireSignature); err != nil {
		return nil, err
	}
	start := time.Now()
	r, err := restore.Prewarm(ctx, c.store, p)
	if err != nil {
		return nil, err
	}
	ready := &Prewarmed{Reference: r.Reference, Digest: r.Digest, Size: r.Size, Already: r.Already, Image: r.Image}
	for _, removed := range r.Removed {
		ready.Removed = append(ready.Removed, removed.Reference)
	}
	if r.Fetched {
		ready.Transfer = transfer(restore.Transferred(&counts, start))
	}
	return ready, nil
}
