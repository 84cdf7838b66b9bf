package shim

import (
	"path/filepath"
	"sync"
	"sync/atomic"

	taskAPI "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/process"

	"github.com/cryo-project/cryo/image/sandbox"
	"github.com/cryo-project/cryo/runtime/checkpoint"
	"github.com/cryo-project/cryo/runtime/criu"
	"github.com/cryo-project/cryo/runtime/gpu"
	"github.com/cryo-project/cryo/runtime/runc"
	"github.com/cryo-project/cryo/shim/fill"
	"github.com/cryo-project/cryo/shim/restorer"
)

// container is what cryo knows of a container beside what the stock service knows.
type container struct {
	bundle  bundle
	runtime runtimeContainer
	request *taskAPI.CreateTaskRequest // as the stock service got it
	gate    gate
	gpus    gpus
	// parked is not nil while the container stands frozen with its GPUs saved, since a client that had paused it has taken a
	// checkpoint. Guarded by the gate: who has closed it writes, who has entered it may read.
	parked checkpoint.Devices

	sending atomic.Bool // a snapshot is being taken and sent, by the container's annotation

	starting *starting // shared with the container that is started afresh in its place

	annotated *annotated        // nil: no restore that the container asks for
	process   *restorer.Process // that has prepared the restore; nil: none has, a stock client restores
	prepared  restorer.Prepared // by the process; the zero value: nothing
	fits      func() error      // waits until it is known whether its GPUs fit, and says why not; nil: nothing is loaded onto GPUs
	loaded    gpu.Loaded        // how its GPUs were

	restore   string                          // directory of the images it is restored from; empty: started afresh
	ipc       *criu.IPC                       // the IPC namespace of its pod; nil: it has its own, or is not restored
	work      string                          // where CRIU leaves its log of the restore
	box       atomic.Pointer[sandbox.Sandbox] // has reviewed the images; nil: it has ended
	restoring atomic.Bool                     // the restore is under way
	ran       atomic.Bool                     // CRIU has restored it, whatever became of it
	filling   atomic.Pointer[fill.Filling]    // nil: all memory was there when it began to run
	watched   chan struct{}                   // closed when its memory is there, or does not come and it has been ended for that; nil: nothing is filled in
	exited    <-chan struct{}                 // closed when the end of what was restored is known; nil: it would not be started afresh
	cgroup    atomic.Value                    // of a restored container: what restorer.CgroupOf gives
}

// starting is the Start of a container that is restored, or started afresh where that fails.
type starting struct {
	underway  atomic.Bool // Start has not answered
	brokenOff atomic.Bool // the container is to end
	once      sync.Once
	decided   chan struct{} // closed when it is known which process the container has
}

func (s *starting) decide() { s.once.Do(func() { close(s.decided) }) }

// runtimeContainer is the container as runc knows it.
type runtimeContainer = runc.Container

// newRuntimeContainer calls runc as the stock service does, with a log of its own: the stock service reads reasons from its log.
func newRuntimeContainer(id, bundle, namespace string, o *options.Options) runtimeContainer {
	r := process.NewRunc(o.Root, bundle, namespace, o.BinaryName, o.SystemdCgroup)
	r.Log = filepath.Join(bundle, "cryo-runc.json")
	return runtimeContainer{ID: id, Bundle: bundle, Runtime: r}
}
