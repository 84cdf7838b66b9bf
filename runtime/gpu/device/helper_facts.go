package device

import "github.com/cryo-project/cryo/image/record"

// Device is a GPU of this host.
type Device struct {
	UUID         string `json:"uuid"` // "GPU-" and 36 characters, as nvidia-smi -L prints
	Index        int    `json:"index"`
	Minor        int    `json:"minor"` // of /dev/nvidiaN
	Name         string `json:"name"`
	Architecture string `json:"architecture"` // compute capability, "9.0"
	Memory       int64  `json:"memory"`       // bytes
	Free         int64  `json:"free"`         // bytes
	PCI          string `json:"pci"`          // "00000000:1B:00.0"
	MIG          bool   `json:"mig"`          // is divided into instances
}

// Spec is the device in the words of snapshots.
func (d Device) Spec() record.HostGPU {
	return record.HostGPU{Free: d.Free, GPUDevice: record.GPUDevice{UUID: d.UUID, Minor: d.Minor, Name: d.Name, Architecture: d.Architecture, Memory: d.Memory}}
}

// DeviceUse is what a process holds on a device.
type DeviceUse struct {
	PID    int    `json:"pid"`
	UUID   string `json:"uuid"`
	Memory int64  `json:"memory"` // bytes, 0 where the driver does not say
}

// Facts are what the driver says of this host.
type Facts struct {
	Driver  string      `json:"driver"` // "580.159.04"
	CUDA    int         `json:"cuda"`   // newest CUDA the driver supports, 13000 for 13.0
	Devices []Device    `json:"devices"`
	Uses    []DeviceUse `json:"uses"`
	MPS     bool        `json:"mps"` // a control daemon or a server of MPS runs
}
