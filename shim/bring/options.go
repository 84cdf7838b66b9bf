package bring

import (
	"net/url"

	"github.com/cryo-project/cryo/image/registry"
	"github.com/cryo-project/cryo/runtime/gpu/driver"
	"github.com/cryo-project/cryo/shim/job"
	"github.com/cryo-project/cryo/shim/restorer"
)

// Options are the choices of a restore.
type Options struct {
	// Program is the path of cryo, which is started as the restore process, and ConfigFile its configuration; empty: the one that it finds itself.
	Program, ConfigFile string
	// Address is that of containerd's socket, which the shim and the restore process use too.
	Address string
	// Ref is the snapshot.
	Ref string
	// Name is the container's; empty: the one that it had.
	Name string
	// Choices of what is restored and what it may have of the host. Restore sets their Registry, Progress and Debug.
	Choices restorer.Choices
	// Registry says how to reach the snapshot's registry.
	Registry registry.Options
	// Runtime and Snapshotter are containerd's names; empty: as the snapshot's container had them, if they are cryo's and here.
	Runtime, Snapshotter string
	// Log is where output goes, file:///PATH or binary:///PATH; nil: the shim keeps some of it.
	Log *url.URL
	// Wait has Restore wait until all memory is in the local store.
	Wait bool
	// Debug is told what the restore process logs for who debugs, a line at a time; nil: it logs nothing.
	Debug func(line string)

	job.Hooks
}

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
	GPUPrewarmed bool          `json:"gpuPrewarmed,omitempty"`
	GPUs         []driver.Pair `json:"gpus,omitempty"`      // which took the place of which
	Complete     bool          `json:"complete"`            // the whole snapshot is in the local store
	Pull         *job.Transfer `json:"pull,omitempty"`      // what was fetched until Restore ended; nil: nothing was missing
	PullFirst    string        `json:"pullFirst,omitempty"` // why it did not run while it was fetched
	Warnings     []string      `json:"warnings"`
}
