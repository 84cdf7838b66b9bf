package gpu

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cryo-project/cryo/runtime/gpu/device"
)

// Container says of which container the GPUs are.
type Container struct {
	// PIDs lists its processes, by their ids in this process's pid namespace, which must be the first one.
	PIDs func(ctx context.Context) ([]int, error)
	// Minors are the numbers N of its device nodes /dev/nvidiaN, in the order in which they are recorded. None: it can see
	// all devices.
	Minors []int
}

func (c Container) host() proc { return proc{"/"} }

// visible are the devices the container can see, in order.
func (c Container) visible(facts device.Facts) (devices []device.Device) {
	if len(c.Minors) == 0 {
		devices = slices.Clone(facts.Devices)
		slices.SortFunc(devices, func(a, b device.Device) int { return a.Minor - b.Minor })
		return devices
	}
	for _, minor := range c.Minors {
		if i := slices.IndexFunc(facts.Devices, func(d device.Device) bool { return d.Minor == minor }); i >= 0 {
			devices = append(devices, facts.Devices[i])
		}
	}
	return devices
}

// driver is the version of NVIDIA's kernel module; empty where it is not loaded.
func (p proc) driverFile() string {
	version, err := os.ReadFile(filepath.Join(p.root, "sys/module/nvidia/version"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(version))
}
