package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/runtime/gpu"
	"github.com/cryo-project/cryo/runtime/gpu/device"
	"github.com/cryo-project/cryo/runtime/gpu/library"
	"github.com/cryo-project/cryo/shim/config"
)

// keeperName is the program that speaks to NVIDIA's driver.
const keeperName = "cryo-gpu-keeper"

// checkGPU has the helper ask the driver. A host without GPUs lacks nothing; where there are some, what keeps containers from
// using them does not keep others from working.
func checkGPU(ctx context.Context, p *patient) []Diagnosis {
	installed := exists(filepath.Join(p.root, "proc/driver/nvidia/version"))
	path, _ := lookup(keeperName, p.paths) // else the helper beside cryo is asked
	facts, err := device.ReadFacts(ctx, path)
	var fault *device.UnusableError
	switch {
	case !installed && (errors.Is(err, device.ErrNoHelper) || errors.As(err, &fault) && fault.Fault == device.FaultAbsent):
		return found("gpu", good, "", "none")
	case err != nil:
		mend := failure.Hint(err)
		if mend == "" {
			mend = "see what " + keeperName + " facts says"
		}
		return found("gpu", worry, mend, "%v: containers with GPUs can be neither checkpointed nor restored", err)
	}
	all := found("gpu", good, "", "driver %s, CUDA %d.%d, %d GPUs", facts.Driver, facts.CUDA/1000, facts.CUDA%1000/10, len(facts.Devices))
	for _, d := range facts.Devices {
		all = append(all, checkDevice(d)...)
	}
	if facts.MPS {
		all = append(all, found("gpu mps", worry, "end it: echo quit | nvidia-cuda-mps-control", "the Multi-Process Service runs: containers that use it cannot be checkpointed")...)
	}
	all = append(all, checkEngine(p)...)
	return append(all, checkCDI(p)...)
}

// checkEngine looks for what the engine keeper needs where the configuration has it for all containers.
func checkEngine(p *patient) []Diagnosis {
	if p.Config.GPU.Engine != image.KeeperEngine {
		return nil
	}
	file, err := library.Locate("")
	if err != nil {
		return found("gpu engine", worry, failure.Hint(err), "the driver saves the memory of GPUs, for lack of the library of the engine keeper: %v", err)
	}
	return found("gpu engine", good, "", "keeper, by %s", file.Path)
}

func checkDevice(d device.Device) []Diagnosis {
	name := fmt.Sprintf("gpu %d", d.Index)
	if d.MIG {
		return found(name, worry, "turn MIG off (nvidia-smi -mig 0) for containers that shall be checkpointed", "%s, divided into instances: containers that use it cannot be checkpointed", d.Name)
	}
	return found(name, good, "", "%s, architecture %s, %s of %s free", d.Name, d.Architecture, config.Size(d.Free), config.Size(d.Memory))
}

// checkCDI looks whether clients can give GPUs by their CDI names, which is how a snapshot finds them on another host.
func checkCDI(p *patient) []Diagnosis {
	const generate = "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
	host := gpu.OpenCDI(p.Config.GPU.CDI...)
	var names []string
	for _, name := range host.Names() {
		edits, err := host.Edits([]string{name})
		if err != nil {
			return found("gpu cdi", worry, failure.Hint(err), "%v", err)
		}
		if len(edits.Minors()) > 0 {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return found("gpu cdi", worry, generate, "no CDI device: restored containers get GPUs only by --allow devices, and from hosts that are alike")
	}
	return found("gpu cdi", good, "", "%s", strings.Join(names, ", "))
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
