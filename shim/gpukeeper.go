package shim

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"

	taskAPI "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/runtime/checkpoint"
	"github.com/cryo-project/cryo/runtime/gpu"
	"github.com/cryo-project/cryo/runtime/gpu/library"
	"github.com/cryo-project/cryo/shim/worker"
)

// gpuEngine is a container's engine: by its annotation, which asks for it, else by the configuration.
func (s *service) gpuEngine(spec *specs.Spec) (engine string, asked bool, err error) {
	engine, asked = spec.Annotations[gpu.EngineAnnotation]
	switch {
	case !asked:
		engine = s.config.GPU.Engine
	case engine != image.DriverEngine && engine != image.KeeperEngine:
		err = fmt.Errorf("annotation %s=%q is neither %s nor %s: %w", gpu.EngineAnnotation, engine, image.DriverEngine, image.KeeperEngine, errdefs.ErrInvalidArgument)
	}
	return engine, asked, err
}

// managedVariable returns the variable for the environment of a container whose annotation says who makes managed memory, or where that is. It is empty without the annotation.
func managedVariable(spec *specs.Spec) (string, error) {
	value, asked := spec.Annotations[gpu.ManagedAnnotation]
	switch {
	case !asked:
		return "", nil
	case value == gpu.ManagedByDriver:
		return library.ManagedByDriver, nil
	case value == gpu.ManagedOnHost:
		return library.ManagedOnHost, nil
	}
	return "", fmt.Errorf("annotation %s=%q is neither %s nor %s: %w", gpu.ManagedAnnotation, value, gpu.ManagedByDriver, gpu.ManagedOnHost, errdefs.ErrInvalidArgument)
}

// sharesProcesses is why a container that does not ask for the engine keeper goes without the library: what opens memory of its processes by legacy IPC must have the library too, and
// processes of other containers and of the host have none. Such handles are of use only to processes that find each other by their PIDs.
func sharesProcesses(spec *specs.Spec) string {
	if spec.Linux != nil && slices.ContainsFunc(spec.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == specs.PIDNamespace && n.Path == "" }) {
		return ""
	}
	return "the container shares its PID namespace, and others may open its GPU memory; annotation " + gpu.EngineAnnotation + "=" + image.KeeperEngine + " asks for the engine keeper all the same"
}

// giveLibrary has the programs of a new container with NVIDIA's GPUs load what hands their device memory over. Where it cannot be, a container that asks for that is not made, and the driver saves others.
func (s *service) giveLibrary(ctx context.Context, c *container, r *taskAPI.CreateTaskRequest) error {
	if !c.gpus.nvidia {
		return nil
	}
	err := c.bundle.changeSpec(func(spec *specs.Spec) error {
		engine, asked, err := s.gpuEngine(spec)
		if err != nil {
			return err
		}
		managed, err := managedVariable(spec)
		if err != nil || engine != image.KeeperEngine {
			return err
		}
		found, err := library.Locate("")
		switch {
		case err != nil && asked:
			return err
		case err != nil:
			c.gpus.fallback = "the host has no " + library.File
			return nil
		case !asked:
			if c.gpus.fallback = sharesProcesses(spec); c.gpus.fallback != "" {
				return nil
			}
		}
		c.gpus.fallback, err = injectWith(ctx, r, func(rootfs string) string { return found.Inject(spec, rootfs) })
		if err == nil && c.gpus.fallback == "" {
			c.gpus.library = &image.GPULibrary{Digest: found.Digest}
			if managed != "" {
				spec.Process.Env = append(spec.Process.Env, managed)
			}
		}
		return err
	})
	if err == nil && c.gpus.fallback != "" {
		log.G(ctx).WithField("id", r.ID).WithField("reason", c.gpus.fallback).Warn("the driver will save a container's GPUs, and not the engine keeper")
	}
	return err
}

// injectWith shows the container's rootfs, which is mounted only later, to a function that looks what is in it.
func injectWith(ctx context.Context, r *taskAPI.CreateTaskRequest, look func(rootfs string) string) (why string, err error) {
	if len(r.Rootfs) == 0 {
		return look(filepath.Join(r.Bundle, "rootfs")), nil
	}
	err = mount.WithReadonlyTempMount(ctx, mount.FromProto(r.Rootfs), func(root string) error {
		why = look(root)
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("look into the container's rootfs: %w", err)
	}
	return why, nil
}

// giveLibraryAgain mounts the library that processes of a snapshot have loaded, where they have it.
func (c *container) giveLibraryAgain(spec *specs.Spec) error {
	record := c.gpus.record
	if record == nil || record.Engine != image.KeeperEngine {
		return nil
	}
	if record.Library == nil {
		c.gpus.fallback = "it had none on the host that it was restored from"
		return nil
	}
	found, err := library.Locate("")
	if err != nil {
		return err
	}
	if found.Digest != record.Library.Digest {
		return failure.New(errdefs.ErrFailedPrecondition,
			fmt.Sprintf("install the %s of the cryo that the container was created with, or name it with %s in containerd's environment", library.File, library.Variable),
			"the snapshot's processes have loaded %s %s (%s), and %s is %s", library.File, record.Library.Version, record.Library.Digest, found.Path, found.Digest)
	}
	if why := found.Inject(spec, ""); why != "" { // its processes have it, whatever the image is
		return fmt.Errorf("give the container %s again: %s: %w", library.File, why, errdefs.ErrFailedPrecondition)
	}
	kept := *record.Library
	c.gpus.library = &kept
	return nil
}

// handOver has the container hand device memory over, or notes why it does not.
func handOver(c *container, e *gpu.Engine, holder *worker.Holder, frozen bool) {
	e.Library, e.Fallback = c.gpus.library, c.gpus.fallback
	switch {
	case e.Library == nil:
	case !holder.Asked().Devices:
		e.Fallback = "the client does not take device memory"
	case frozen:
		e.Fallback = "the container was paused"
	default:
		e.Peer, e.Precopy = holder.Devices, holder.Precopy
	}
}

// drain waits until a copy of device memory is with the checkpoint process, while the container runs and may be used.
func (s *service) drain(ctx context.Context, in *admission, request checkpoint.Request) error {
	defer request.Devices.Release()
	in.become(copying)
	err := request.Devices.Drain(ctx)
	switch cause := context.Cause(ctx); {
	case err == nil:
		return nil
	case cause == errKilled || cause == errDeleted:
		return fmt.Errorf("checkpoint %s: %w: %w", request.ID, cause, errdefs.ErrAborted)
	}
	return checkpoint.Failed(request.ID, err)
}
