package fit

import (
	"errors"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/cryo-project/cryo/image"
)

// GPUs are what a host has for the GPUs of a snapshot.
type GPUs struct {
	// NoKeeper says why there is no cryo-gpu-keeper, without which nothing else is known.
	NoKeeper error
	// NoGPU says why there are none: the driver cannot be used, or there is no such CDI device.
	NoGPU error
	// Unasked: the driver has not said anything yet, and what it may say stands in nobody's way.
	Unasked bool
	// Driver is the version of NVIDIA's driver.
	Driver string
	// Devices are those that take the places of the snapshot's, in the same order.
	Devices []FreeGPU
	// Mounts are where CDI devices of this host mount files in the container.
	Mounts []string
	// Library is the digest of the file that containers get to hand device memory over; NoLibrary says why there is none.
	Library   digest.Digest
	NoLibrary error
}

// FreeGPU is a GPU and what is left of its memory.
type FreeGPU struct {
	image.GPUDevice
	Free int64 // bytes
}

// gpuLibrary: processes go on in the code of the file that they have mapped.
func gpuLibrary(s subject, t Target) []mismatch {
	if s.GPU == nil || s.GPU.Library == nil || t.GPUs.Library == s.GPU.Library.Digest {
		return nil
	}
	const hint = "install the version of cryo that the snapshot was made with"
	was := s.GPU.Library
	switch {
	case t.GPUs.NoLibrary != nil:
		return one("the container was made with a library for its GPUs, and this host has none: "+t.GPUs.NoLibrary.Error(), hintOf(t.GPUs.NoLibrary, hint))
	case was.Version != "":
		return one(sprintf("the container was made with version %s of the library for its GPUs, and this host has another file: %s instead of %s", was.Version, t.GPUs.Library, was.Digest), hint)
	}
	return one(sprintf("the container was made with another file of the library for its GPUs: this host has %s instead of %s", t.GPUs.Library, was.Digest), hint)
}

func gpuKeeper(s subject, t Target) []mismatch {
	if s.GPU == nil || t.GPUs.NoKeeper == nil {
		return nil
	}
	return one("the snapshot has GPUs, and this host cannot look after its own: "+t.GPUs.NoKeeper.Error(), hintOf(t.GPUs.NoKeeper, "install cryo-gpu-keeper"))
}

func gpuMissing(s subject, t Target) []mismatch {
	switch {
	case s.GPU == nil || t.GPUs.NoKeeper != nil:
		return nil
	case t.GPUs.NoGPU != nil:
		return one("the snapshot has GPUs, and this host none for it: "+t.GPUs.NoGPU.Error(), hintOf(t.GPUs.NoGPU, "restore on a host with NVIDIA GPUs"))
	case t.GPUs.Driver == "" && !t.GPUs.Unasked:
		return one("the snapshot has GPUs, and this host no NVIDIA driver", "restore on a host with NVIDIA GPUs")
	}
	return nil
}

// looked tells whether there is something to compare; if not, another rule has said so.
func looked(s subject, t Target) bool {
	return s.GPU != nil && t.GPUs.NoKeeper == nil && t.GPUs.NoGPU == nil && (t.GPUs.Driver != "" || t.GPUs.Unasked)
}

// used tells so too, but where no process has used its GPUs there is nothing to load, and before the driver was asked nothing is known of them.
func used(s subject, t Target) bool {
	return looked(s, t) && !t.GPUs.Unasked && len(s.GPU.Processes) > 0
}

// branch is the first number of a driver's version. NVIDIA does not say that one branch loads what another has saved.
func branch(version string) string {
	first, _, _ := strings.Cut(version, ".")
	return first
}

func gpuDriver(s subject, t Target) []mismatch {
	if !used(s, t) || branch(s.GPU.Driver) == branch(t.GPUs.Driver) {
		return nil
	}
	return one(sprintf("the snapshot is by NVIDIA driver %s, this host has %s, which is of another branch", s.GPU.Driver, t.GPUs.Driver),
		sprintf("use driver %s on this host, or restore on one that has it", s.GPU.Driver))
}

func gpuDriverVersion(s subject, t Target) []mismatch {
	if !used(s, t) || s.GPU.Driver == t.GPUs.Driver || branch(s.GPU.Driver) != branch(t.GPUs.Driver) {
		return nil
	}
	return one(sprintf("the snapshot is by NVIDIA driver %s, this host has %s", s.GPU.Driver, t.GPUs.Driver), "")
}

// gpuCount: the driver wants a partner for each GPU whose node a process can see, no more and no fewer. Measured with 580.159.04.
func gpuCount(s subject, t Target) []mismatch {
	if !used(s, t) || len(t.GPUs.Devices) == len(s.GPU.Devices) {
		return nil
	}
	return one(sprintf("the snapshot has %d GPUs, and would get %d", len(s.GPU.Devices), len(t.GPUs.Devices)),
		"give it exactly as many: --device nvidia.com/gpu=0 --device nvidia.com/gpu=1, and so on")
}

// gpuPairs gives each device of the snapshot with the one that takes its place.
func gpuPairs(s subject, t Target, pair func(i int, old image.GPUDevice, now FreeGPU) []mismatch) []mismatch {
	if !used(s, t) {
		return nil
	}
	var found []mismatch
	for i, old := range s.GPU.Devices[:min(len(s.GPU.Devices), len(t.GPUs.Devices))] {
		found = append(found, pair(i, old, t.GPUs.Devices[i])...)
	}
	return found
}

func gpuArchitecture(s subject, t Target) []mismatch {
	return gpuPairs(s, t, func(i int, old image.GPUDevice, now FreeGPU) []mismatch {
		if old.Architecture == now.Architecture {
			return nil
		}
		return one(sprintf("GPU %d was %s of architecture %s, and would become %s of architecture %s", i, old.Name, old.Architecture, now.Name, now.Architecture),
			sprintf("restore on GPUs of architecture %s, or choose others of this host with --device or --gpu", old.Architecture))
	})
}

// gpuMemory: what processes held on one GPU must fit there, and what they held in all must fit on all.
func gpuMemory(s subject, t Target) []mismatch {
	if !used(s, t) {
		return nil
	}
	each, all := s.GPU.Need()
	const hint = "end what uses the GPU's memory (see nvidia-smi and cryo prewarm ls), or choose another GPU with --device or --gpu"
	found := gpuPairs(s, t, func(i int, _ image.GPUDevice, now FreeGPU) []mismatch {
		if each[i] <= now.Free {
			return nil
		}
		return one(sprintf("GPU %d held %d MiB, and %s has %d MiB free", i, each[i]>>20, now.UUID, now.Free>>20), hint)
	})
	var free int64
	for _, d := range t.GPUs.Devices {
		free += d.Free
	}
	if len(found) == 0 && len(t.GPUs.Devices) >= len(s.GPU.Devices) && all > free {
		return one(sprintf("processes held %d MiB on GPUs, and those of this host have %d MiB free", all>>20, free>>20), hint)
	}
	return found
}

// gpuLibraries: each mount of CRIU's images needs a source, and the processes have mapped what was mounted there.
func gpuLibraries(s subject, t Target) []mismatch {
	if !looked(s, t) {
		return nil
	}
	have := slices.Clone(t.GPUs.Mounts)
	if s.spec != nil {
		for _, m := range s.spec.Mounts {
			have = append(have, m.Destination)
		}
	}
	missing := slices.DeleteFunc(slices.Clone(s.GPU.Mounts), func(m string) bool { return slices.Contains(have, m) })
	if len(missing) == 0 {
		return nil
	}
	const most = 3
	text := strings.Join(missing[:min(most, len(missing))], ", ")
	if more := len(missing) - most; more > 0 {
		text += sprintf(" and %d more", more)
	}
	return one(sprintf("the CDI devices of this host do not provide %s, which the container has mounted", text),
		sprintf("install NVIDIA driver %s with the same parts as on the snapshot's host, and write the CDI file anew: nvidia-ctk cdi generate", s.GPU.Driver))
}

// hintOf gives the hint of an error, or another.
func hintOf(err error, otherwise string) string {
	var h interface{ Hint() string }
	if errors.As(err, &h) && h.Hint() != "" {
		return h.Hint()
	}
	return otherwise
}
