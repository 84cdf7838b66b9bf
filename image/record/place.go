package record

import (
	"fmt"
	"slices"
	"strings"
)

// HostGPU is a GPU of the host that restores, and what is left of its memory.
type HostGPU struct {
	GPUDevice
	Free int64 // bytes
}

// PlaceGPUs returns for each GPU of a snapshot the one of a container that takes its place: the one whose UUID is wanted for its own, else the next that is not
// wanted. Those left over come last; where there are too few, the result is shorter than old. What is wanted for GPUs that the snapshot
// does not have counts for nothing. The error says which GPU the container does not get, or not twice.
func PlaceGPUs[D any](old []GPUDevice, container []D, uuid func(D) string, wanted map[string]string) (places []D, err error) {
	left := slices.Clone(container)
	take := func(i int) (d D) {
		d = left[i]
		left = slices.Delete(left, i, i+1)
		return d
	}
	fixed := map[int]D{}
	for i, o := range old {
		now, ok := wanted[o.UUID]
		if !ok {
			continue
		}
		at := slices.IndexFunc(left, func(d D) bool { return uuid(d) == now })
		if at < 0 {
			return nil, fmt.Errorf("GPU %s shall take the place of %s, and the container does not get it, or not twice", now, o.UUID)
		}
		fixed[i] = take(at)
	}
	for i := range old {
		d, ok := fixed[i]
		if !ok && len(left) == 0 {
			return places, nil
		}
		if !ok {
			d = take(0)
		}
		places = append(places, d)
	}
	return append(places, left...), nil
}

// Need returns the memory, in bytes, that is wanted on each device, in the order of Devices, and in all. What a process held
// on several devices may be in the sum only, but for its pieces.
func (g *GPU) Need() (each []int64, all int64) {
	each = make([]int64, len(g.Devices))
	for _, p := range g.Processes {
		held := max(p.Memory, p.Handed())
		all += held
		for i, d := range g.Devices {
			if len(p.Devices) == 1 && p.Devices[0] == d.UUID {
				each[i] += held
				continue
			}
			for _, piece := range p.Pieces {
				if piece.Device == d.UUID {
					each[i] += piece.Size
				}
			}
		}
	}
	var used int64
	for i, d := range g.Devices {
		each[i] = max(each[i], d.Used)
		used += each[i]
	}
	return each, max(all, used)
}

// GPUMismatch is what stands in the way of a snapshot's device memory on a host.
type GPUMismatch struct{ Rule, Problem, Hint string }

// Rules by which snapshots and hosts are compared. The driver loads what it has saved neither by another branch of itself, nor on another architecture, nor
// where there is no room for it.
const (
	DriverRule       = "gpu-driver"
	ArchitectureRule = "gpu-architecture"
	MemoryRule       = "gpu-memory"
)

// DriverBranch is the first number of a driver's version. NVIDIA does not say that one branch loads what another has saved.
func DriverBranch(version string) string {
	first, _, _ := strings.Cut(version, ".")
	return first
}

// Compare lists what stands in the way of the snapshot's device memory on a host with a version of the driver, on the GPUs that [PlaceGPUs] has given.
func (g *GPU) Compare(driver string, places []HostGPU) (found []GPUMismatch) {
	if DriverBranch(g.Driver) != DriverBranch(driver) {
		found = append(found, GPUMismatch{DriverRule, fmt.Sprintf("the snapshot is by NVIDIA driver %s, this host has %s, which is of another branch", g.Driver, driver),
			fmt.Sprintf("use driver %s on this host, or restore on one that has it", g.Driver)})
	}
	each, all := g.Need()
	const hint = "end what uses the GPU's memory (see nvidia-smi and cryo prewarm ls), or choose another GPU with --device or --gpu"
	var free int64
	short := false
	for i, now := range places {
		free += now.Free
		if i >= len(g.Devices) {
			continue
		}
		if old := g.Devices[i]; old.Architecture != now.Architecture {
			found = append(found, GPUMismatch{ArchitectureRule,
				fmt.Sprintf("GPU %d was %s of architecture %s, and would become %s of architecture %s", i, old.Name, old.Architecture, now.Name, now.Architecture),
				fmt.Sprintf("restore on GPUs of architecture %s, or choose others of this host with --device or --gpu", old.Architecture)})
		}
		if each[i] > now.Free {
			short = true
			found = append(found, GPUMismatch{MemoryRule, fmt.Sprintf("GPU %d held %d MiB, and %s has %d MiB free", i, each[i]>>20, now.UUID, now.Free>>20), hint})
		}
	}
	if !short && len(places) >= len(g.Devices) && all > free {
		found = append(found, GPUMismatch{MemoryRule, fmt.Sprintf("processes held %d MiB on GPUs, and those of this host have %d MiB free", all>>20, free>>20), hint})
	}
	return found
}
