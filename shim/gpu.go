package shim

import (
	"context"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/runtime/checkpoint"
	"github.com/cryo-project/cryo/runtime/gpu"
	"github.com/cryo-project/cryo/shim/worker"
)

// gpus is what a container has of GPUs by its specification. Nothing is done for one that has none.
type gpus struct {
	nvidia bool
	// library is what the container was given to hand device memory over; nil: nothing, and fallback says why if it asks for that.
	library  *image.GPULibrary
	fallback string
	// record is that of the snapshot the container is restored from; nil: there is none.
	record *gpu.Record
}

// gpusOf looks into a specification. Where all of the host's /dev is mounted, its GPUs are too.
func gpusOf(spec *specs.Spec) gpus {
	g := gpus{nvidia: gpu.HasNVIDIA(spec)}
	for _, m := range spec.Mounts {
		if path.Clean(m.Source) == "/dev" && path.Clean(m.Destination) == "/dev" {
			g.nvidia = true
		}
	}
	return g
}

func isNVIDIA(name string) bool { return strings.HasPrefix(path.Clean(name), "/dev/nvidia") }

// nvidiaNodes are the device nodes of NVIDIA's driver that runc makes.
func nvidiaNodes(spec *specs.Spec) (nodes []specs.LinuxDevice) {
	if spec.Linux == nil {
		return nil
	}
	for _, d := range spec.Linux.Devices {
		if isNVIDIA(d.Path) {
			nodes = append(nodes, d)
		}
	}
	return nodes
}

// gpuContainer is the container as package gpu sees it.
func (c *container) gpuContainer(spec *specs.Spec) gpu.Container {
	return gpu.Container{
		PIDs:   func(ctx context.Context) ([]int, error) { return c.runtime.Processes(ctx) },
		Minors: gpu.DeviceMinors(spec),
	}
}

// engine makes what saves the container's GPUs for a checkpoint, which a process may hold.
func (s *service) engine(ctx context.Context, c *container, holder *worker.Holder, frozen bool) (*gpu.Engine, error) {
	spec, err := c.bundle.spec()
	if err != nil {
		return nil, err
	}
	w := holder.Asked()
	timeout, force, err := s.gpuChoices(spec.Annotations, w)
	if err != nil {
		return nil, err
	}
	e := &gpu.Engine{Container: c.gpuContainer(spec), Timeout: timeout, Force: force, Raise: gpu.RaiseInterrupt, Lower: gpu.LowerInterrupt, RequireKeeper: w.KeeperOnly, GoesOn: w.LeaveRunning}
	handOver(c, e, holder, frozen)
	host := gpu.OpenCDI(s.config.GPU.CDI...)
	if e.CDI = host.Find(spec); len(e.CDI) > 0 {
		edits, err := host.Edits(e.CDI)
		if err != nil {
			return nil, err
		}
		e.Edits = &edits
	}
	for _, n := range nvidiaNodes(spec) {
		e.Nodes = append(e.Nodes, image.GPUNode{Path: path.Clean(n.Path), Major: n.Major, Minor: n.Minor})
	}
	return e, nil
}

// gpuChoices are the checkpoint process's, else the container's, else the configuration's.
func (s *service) gpuChoices(annotations map[string]string, w checkpoint.Options) (timeout time.Duration, force []string, err error) {
	timeout = time.Duration(s.config.GPU.Timeout) * time.Second
	if text := annotations[gpu.TimeoutAnnotation]; text != "" {
		if timeout, err = time.ParseDuration(text); err != nil || timeout <= 0 {
			return 0, nil, fmt.Errorf("annotation %s=%q is no duration such as 10s: %w", gpu.TimeoutAnnotation, text, errdefs.ErrInvalidArgument)
		}
	}
	if w.GPUTimeout > 0 {
		timeout = time.Duration(w.GPUTimeout * float64(time.Second))
	}
	for name := range strings.SplitSeq(annotations[gpu.ForceAnnotation], ",") {
		if name = strings.TrimSpace(name); name != "" {
			force = append(force, name)
		}
	}
	return timeout, append(force, w.Force...), nil
}

// endsWhenKilled ends the container's processes as soon as it is being killed, until stop: a call of the driver for a
// process ends with that process, and may take long otherwise.
func (c *container) endsWhenKilled(ctx context.Context) (stop func()) {
	if !c.gpus.nvidia {
		return func() {}
	}
	done := context.AfterFunc(ctx, func() {
		if context.Cause(ctx) != errKilled {
			return
		}
		again, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
		defer cancel()
		warn(ctx, "kill a container whose GPUs are being saved or loaded", c.runtime.Kill(again))
	})
	return func() { done() }
}
