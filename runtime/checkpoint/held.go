package checkpoint

import "time"

// Decision is what becomes of a container that is dumped and frozen.
type Decision string

// The decisions there are.
const (
	Resume Decision = "resume" // it runs on
	Kill   Decision = "kill"   // it ends
)

// Options are what a holder asks for beyond what containerd's request has fields for.
type Options struct {
	// GPUTimeout, in seconds, is how long processes may take to finish their work on GPUs; 0: as configured.
	GPUTimeout float64 `json:"gpuTimeout,omitempty"`
	// Force names rules of package gpu that are overridden; "all" is every one.
	Force []string `json:"force,omitempty"`
	// Hooks are labels of the container that name commands to be run in it, where no annotation does.
	Hooks map[string]string `json:"hooks,omitempty"`
	// Devices tells that the holder takes device memory over a connection of its own. Without it, all device memory goes into the memory of the processes.
	Devices bool `json:"devices,omitempty"`
	// Precopy is true if the holder also takes device memory while the processes run, over another connection.
	Precopy bool `json:"precopy,omitempty"`
	// LeaveRunning tells that the holder will have the container run on: a copy of device memory comes when it does. It is advisory.
	LeaveRunning bool `json:"leaveRunning,omitempty"`
	// KeeperOnly refuses a checkpoint, before anything is done, in which all device memory of a process would go into its own memory.
	KeeperOnly bool `json:"keeperOnly,omitempty"`
}

// Dumped describes a container that is dumped; it is frozen then.
type Dumped struct {
	Frozen      time.Time `json:"frozen"`                // since when it stands still
	LockSeconds float64   `json:"lockSeconds,omitempty"` // of which its GPUs finished their work
	SaveSeconds float64   `json:"saveSeconds,omitempty"` // of which device memory was moved into memory
	DumpSeconds float64   `json:"dumpSeconds"`           // of which runc and CRIU
	// Devices tells that device memory comes over a connection of its own, which is there by now. There is no snapshot without all of it.
	Devices bool `json:"devices,omitempty"`
	// DevicesPending tells that what comes is a copy: the container may be resumed before all has come. Without it, the container
	// stands still until then, and the holder decides afterwards.
	DevicesPending bool `json:"devicesPending,omitempty"`
}

// Released describes a container of which the holder has decided. One that has gone on is observed for a moment afterwards, until the checkpoint has ended.
type Released struct {
	FreezeSeconds float64 `json:"freezeSeconds"`         // how long the container stood still
	LoadSeconds   float64 `json:"loadSeconds,omitempty"` // of which device memory was moved back
	Killed        bool    `json:"killed"`
	// DevicesPending tells that the container runs and its device memory still comes.
	DevicesPending bool `json:"devicesPending,omitempty"`
}

// Released returns what a holder hears of the result.
func (r Result) Released() Released {
	return Released{FreezeSeconds: r.Freeze.Seconds(), LoadSeconds: r.Load.Seconds(), Killed: r.Killed, DevicesPending: r.Pending}
}
