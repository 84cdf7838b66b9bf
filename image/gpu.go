package image

import (
	"errors"
	"fmt"
	"path"
	"strings"
)

// GPU is what the container had of GPUs, and how what it kept there was saved.
type GPU struct {
	// Engine says how: "driver" is the driver's own checkpoint, which moves device memory into the memory of the processes.
	Engine string `json:"engine"`
	Driver string `json:"driver"`         // version of NVIDIA's driver, "580.159.04"
	CUDA   int    `json:"cuda,omitempty"` // newest version of CUDA that it supports, 13000 for 13.0
	// Devices are the GPUs of the container, in order.
	Devices []GPUDevice `json:"devices"`
	// Processes are those that held something on them.
	Processes []GPUProcess `json:"processes"`
	// CDI are the names of the CDI devices that gave the container its GPUs; Spec is without what they had put there.
	CDI []string `json:"cdi,omitempty"`
	// Mounts are where these devices mounted files in the container. CRIU's images want something mounted at each.
	Mounts []string `json:"mounts,omitempty"`
	// Nodes are the device nodes that the container had for its GPUs.
	Nodes []GPUNode `json:"nodes,omitempty"`
	// Forced are rules that spoke against the checkpoint and were overridden: the restore may fail.
	Forced  []string   `json:"forced,omitempty"`
	Seconds GPUSeconds `json:"seconds"`
}

// GPUDevice is a GPU.
type GPUDevice struct {
	UUID         string `json:"uuid"`
	Minor        int    `json:"minor"` // of /dev/nvidiaN on the host
	Name         string `json:"name"`
	Architecture string `json:"architecture"` // compute capability, "9.0"
	Memory       int64  `json:"memory"`       // bytes that it has
	Used         int64  `json:"used"`         // bytes of which the container held, as far as the driver told
}

// GPUProcess is a process that used GPUs.
type GPUProcess struct {
	PID     int      `json:"pid"` // inside the container
	Command string   `json:"command"`
	Memory  int64    `json:"memory"`  // bytes on its devices
	Devices []string `json:"devices"` // their UUIDs
}

// GPUNode is a device node.
type GPUNode struct {
	Path  string `json:"path"`
	Major int64  `json:"major"`
	Minor int64  `json:"minor"`
}

// GPUSeconds are parts of the freeze.
type GPUSeconds struct {
	Lock       float64 `json:"lock"`       // until all processes had finished their work on the GPUs
	Checkpoint float64 `json:"checkpoint"` // until it was in the memory of the processes
}

// Limits of what a config may say, for those who read it.
const (
	maxGPUs     = 1024
	maxGPUItems = 1 << 16
	maxGPUBytes = 1 << 60
)

// Need gives the memory, in bytes, that is wanted on each device, in the order of Devices, and in all. What a process held
// on several devices may be in the sum only.
func (g *GPU) Need() (each []int64, all int64) {
	each = make([]int64, len(g.Devices))
	for _, p := range g.Processes {
		all += p.Memory
		for i, d := range g.Devices {
			if len(p.Devices) == 1 && p.Devices[0] == d.UUID {
				each[i] += p.Memory
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

// check says what cannot be so.
func (g *GPU) check() error {
	if len(g.Devices) > maxGPUs || len(g.CDI) > maxGPUs || len(g.Processes) > maxGPUItems || len(g.Mounts) > maxGPUItems || len(g.Nodes) > maxGPUItems {
		return errors.New("it lists more GPUs, or more of them, than there can be")
	}
	known := map[string]bool{}
	var used int64
	for _, d := range g.Devices {
		used += d.Used
		if d.UUID == "" || known[d.UUID] || d.Memory < 0 || d.Used < 0 || used < 0 || used > maxGPUBytes || d.Minor < 0 {
			return fmt.Errorf("its GPU %.100q is not possible", d.UUID)
		}
		known[d.UUID] = true
	}
	var all int64
	for _, p := range g.Processes {
		all += p.Memory
		if p.Memory < 0 || all < 0 || all > maxGPUBytes || len(p.Devices) > maxGPUs {
			return fmt.Errorf("what its process %d held on GPUs is not possible", p.PID)
		}
		for _, uuid := range p.Devices {
			if !known[uuid] {
				return fmt.Errorf("its process %d used the GPU %.100q, which the container did not have", p.PID, uuid)
			}
		}
	}
	for _, m := range g.Mounts {
		if !path.IsAbs(m) {
			return fmt.Errorf("GPU files were mounted at %.100q", m)
		}
	}
	for _, n := range g.Nodes {
		if path.Clean(n.Path) != n.Path || !strings.HasPrefix(n.Path, "/dev/") {
			return fmt.Errorf("it had a GPU's device node at %.100q", n.Path)
		}
	}
	return nil
}
