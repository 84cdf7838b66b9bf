package gpu

import "github.com/cryo-project/cryo/runtime/gpu/device"

// Loaded says how a container's GPUs were loaded.
type Loaded struct {
	Seconds   float64 `json:"load"`
	Prewarmed bool    `json:"prewarmed,omitempty"` // what it had handed over was on the devices before
	// GPUs say which took the place of which, in the order of the record.
	GPUs []device.DevicePair `json:"gpus,omitempty"`
}
