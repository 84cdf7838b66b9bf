package restore

import (
	"github.com/cryo-project/cryo/runtime/gpu/device"
)

// Result is a container that runs.
type Result struct {
	Container string  `json:"container"`
	Namespace string  `json:"namespace"`
	PID       uint32  `json:"pid"`
	Reference string  `json:"reference"`
	Digest    string  `json:"digest"`
	Image     string  `json:"image"`
	Seconds   float64 `json:"seconds"`         // from reading the snapshot to running
	Running   float64 `json:"running"`         // from the begin to running, what was fetched before included
	Lazy      bool    `json:"lazy"`            // memory is filled in while it runs
	Eager     string  `json:"eager,omitempty"` // why it is not
	// GPUPrewarmed: what its processes had handed over was on the GPUs already.
	GPUPrewarmed bool                `json:"gpuPrewarmed,omitempty"`
	GPUs         []device.DevicePair `json:"gpus,omitempty"`      // which took the place of which
	Complete     bool                `json:"complete"`            // the whole snapshot is in the local store
	Pull         *Transfer           `json:"pull,omitempty"`      // what was fetched until then; nil: nothing was missing
	PullFirst    string              `json:"pullFirst,omitempty"` // why it did not run while it was fetched
	Warnings     []string            `json:"warnings"`

	// Pool: the snapshot has a pool of paused containers.
	Pool *FromPool `json:"pool,omitempty"`

	// Arrives: its memory comes while it runs.
	Arrives bool `json:"arrives,omitempty"`
}
