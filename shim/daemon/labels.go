package daemon

import (
	"context"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/opencontainers/go-digest"
)

// Labels of containers.
const (
	// WorkLabel marks what a command makes until it is finished, with the command's working directory. A command that is killed cannot undo it; the next one with
	// the same root does.
	WorkLabel = "io.cryo.work"
	// RestoredLabel names the snapshot that a container was made of, by its digest; ReferenceLabel by what it was called.
	RestoredLabel  = "io.cryo.snapshot"
	ReferenceLabel = "io.cryo.reference"
	// CheckpointLabel names the last snapshot that was taken while the container ran on, by its digest.
	CheckpointLabel = "io.cryo.checkpoint"
)

// Label gives a container a label with a digest.
func Label(ctx context.Context, client *containerd.Client, id, label string, d digest.Digest) error {
	_, err := client.ContainerService().Update(ctx, containers.Container{ID: id, Labels: map[string]string{label: d.String()}}, "labels."+label)
	return err
}
