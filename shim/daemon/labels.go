package daemon

import (
	"context"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/go-digest"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Labels of containers.
const (
	// WorkLabel marks what a command makes until it is finished, with the command's working directory. A command that is killed cannot undo it; the next one with
	// the same root does.
	WorkLabel = "io.cryo.work"
	// ReferenceLabel names the snapshot that a container was made of, as it was called.
	ReferenceLabel = "io.cryo.reference"
	// PoolLabel names the snapshot in whose pool a container stands still, for people who list containers. cryo goes by its own files.
	PoolLabel = "io.cryo.pool"
)

// Extensions of containers, which have the digest of a snapshot. Its image gives a container labels, but no extensions: by these a new snapshot shares segments with another.
const (
	// RestoredExtension has that of the snapshot that a container was made of.
	RestoredExtension = "io.cryo.snapshot"
	// CheckpointExtension has that of the last one that was taken while the container ran on.
	CheckpointExtension = "io.cryo.checkpoint"
)

// Extend gives a container an extension with a digest.
func Extend(ctx context.Context, client *containerd.Client, id, name string, d digest.Digest) error {
	c := containers.Container{ID: id}
	if err := WithDigest(name, d)(ctx, client, &c); err != nil {
		return err
	}
	_, err := client.ContainerService().Update(ctx, c, "extensions."+name)
	return err
}

// WithDigest returns an option that gives a new container an extension with a digest.
func WithDigest(name string, d digest.Digest) containerd.NewContainerOpts {
	return containerd.WithContainerExtension(name, wrapperspb.String(d.String()))
}

// DigestIn returns the digest in an extension; empty: there is none.
func DigestIn(info containers.Container, name string) digest.Digest {
	extension, ok := info.Extensions[name]
	if !ok {
		return ""
	}
	var text wrapperspb.StringValue
	if err := typeurl.UnmarshalTo(extension, &text); err != nil || digest.Digest(text.Value).Validate() != nil {
		return ""
	}
	return digest.Digest(text.Value)
}
