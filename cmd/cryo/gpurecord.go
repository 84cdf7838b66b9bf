package main

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/runtime/checkpoint"
	"github.com/cryo-project/cryo/runtime/gpu"
	"github.com/cryo-project/cryo/runtime/gpu/cdi"
)

// recordGPUs puts into a snapshot's config what the shim has written beside the images of the container's GPUs. What CDI
// devices of this host had put into its specification is taken out: another host puts in its own.
func (a *app) recordGPUs(c *image.Config, images string, dumped checkpoint.Dumped) error {
	r, err := gpu.ReadRecord(images)
	if err != nil || r == nil {
		return err
	}
	settings, err := a.config()
	if err != nil {
		return err
	}
	var spec specs.Spec
	if err := json.Unmarshal(c.Spec, &spec); err != nil {
		return fmt.Errorf("read the runtime specification: %w", err)
	}
	host := cdi.Open(settings.GPU.CDI...)
	c.GPU = ofRecord(r)
	c.GPU.Seconds = image.GPUSeconds{Lock: dumped.LockSeconds, Checkpoint: dumped.SaveSeconds}
	c.GPU.CDI = host.Find(&spec)
	edits, err := host.Edits(c.GPU.CDI)
	if err != nil {
		return err
	}
	edits.Strip(&spec)
	for _, m := range edits.Mounts {
		c.GPU.Mounts = append(c.GPU.Mounts, m.Destination)
	}
	forget(&spec)
	if c.Spec, err = json.Marshal(&spec); err != nil {
		return fmt.Errorf("write the runtime specification: %w", err)
	}
	return nil
}

// ofRecord puts the shim's words into those of the format.
func ofRecord(r *gpu.Record) *image.GPU {
	g := &image.GPU{Engine: r.Engine, Driver: r.Driver, CUDA: r.CUDA, Forced: r.Forced, Devices: []image.GPUDevice{}, Processes: []image.GPUProcess{}}
	for _, d := range r.Devices {
		g.Devices = append(g.Devices, image.GPUDevice(d))
	}
	for _, p := range r.Processes {
		to := image.GPUProcess{PID: p.PID, Command: p.Command, Memory: p.Memory, Devices: p.Devices, Fallback: clipped(p.Fallback, image.MaxFallback)}
		for _, piece := range p.Pieces {
			to.Pieces = append(to.Pieces, image.GPUPiece(piece))
		}
		g.Processes = append(g.Processes, to)
	}
	for _, n := range r.Nodes {
		g.Nodes = append(g.Nodes, image.GPUNode(n))
	}
	if r.Library != nil {
		g.Library = &image.GPULibrary{Version: r.Library.Version, Digest: digest.Digest(r.Library.Digest)}
	}
	return g
}

// clipped gives the first bytes of a text.
func clipped(text string, most int) string {
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "")
	}
	return text
}

// checkRecord refuses images that say something of GPUs to the shim of which the config, by which everything was decided,
// says nothing, and the reverse.
func checkRecord(c image.Config, images string) error {
	r, err := gpu.ReadRecord(images)
	if err != nil {
		return err
	}
	if (r == nil) != (c.GPU == nil) {
		return fmt.Errorf("the snapshot's config and its images contradict each other about GPUs: %w", errdefs.ErrDataLoss)
	}
	if r == nil {
		return nil
	}
	if of := ofRecord(r); of.Engine != c.GPU.Engine || !slices.Equal(piecesOf(of), piecesOf(c.GPU)) || !reflect.DeepEqual(of.Library, c.GPU.Library) {
		return fmt.Errorf("the snapshot's config and its images contradict each other about the memory of GPUs: %w", errdefs.ErrDataLoss)
	}
	return nil
}

// ownedPiece is a piece of device memory and the process that it belongs to.
type ownedPiece struct {
	image.GPUPiece
	pid int
}

// piecesOf are those of all processes, in the order in which they are numbered.
func piecesOf(g *image.GPU) (all []ownedPiece) {
	for _, p := range g.Processes {
		for _, piece := range p.Pieces {
			all = append(all, ownedPiece{piece, p.PID})
		}
	}
	return all
}

// forget removes what was told to the shim for one restore. It is no property of the container.
func forget(spec *specs.Spec) {
	delete(spec.Annotations, cdi.Annotation)
	delete(spec.Annotations, gpu.MapAnnotation)
}

// forgetIn does so in containerd's record of a container.
func forgetIn(c *containers.Container) error {
	var spec specs.Spec
	if err := json.Unmarshal(c.Spec.GetValue(), &spec); err != nil {
		return fmt.Errorf("read the runtime specification: %w", err)
	}
	if _, told := spec.Annotations[cdi.Annotation]; !told {
		return nil
	}
	forget(&spec)
	packed, err := typeurl.MarshalAnyToProto(&spec)
	if err != nil {
		return fmt.Errorf("write the runtime specification: %w", err)
	}
	c.Spec = packed
	return nil
}
