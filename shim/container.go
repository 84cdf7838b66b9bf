package shim

import (
	"context"
	"path/filepath"
	"sync/atomic"

	taskAPI "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/process"

	"github.com/cryo-project/cryo/image/trust"
	"github.com/cryo-project/cryo/runtime/checkpoint"
	"github.com/cryo-project/cryo/runtime/criu"
	"github.com/cryo-project/cryo/runtime/gpu"
	"github.com/cryo-project/cryo/runtime/gpu/device"
	"github.com/cryo-project/cryo/runtime/runc"
	"github.com/cryo-project/cryo/shim/worker"
)

// container is what cryo knows of a container beside what the stock service knows.
type container struct {
	bundle  bundle
	runtime runtimeContainer
	request *taskAPI.CreateTaskRequest // as the stock service got it
	life    life
	gpus    gpus
	saved   checkpoint.Devices // its GPUs, while it is parked; only a call that has the container for itself uses it

	sending atomic.Bool // a snapshot is being taken and sent, by the container's annotation

	annotated *annotatedRestore           // nil: a stock client restores, or it is started
	process   *worker.Process             // that has prepared the restore; nil: none has, a stock client restores
	prepared  worker.Prepared             // by the process; the zero value: nothing
	fits      func() error                // waits until it is known whether its GPUs fit, and says why not; nil: nothing is loaded onto GPUs
	pairs     func() []device.DevicePair  // which GPU takes the place of which, when fits has found nothing in the way; nil: it has none
	loaded    gpu.Loaded                  // how its GPUs were
	thaw      func(context.Context) error // lets it run that stands frozen since CRIU has restored it; nil: it runs

	stands *standing // a member of a pool that stands still; nil: it is none, or runs

	barrier  *barrier     // keeps packets from a member of a group until all members are ready; nil: none stands
	restored atomic.Int64 // first process of the container that CRIU has restored, and that does not run yet; 0: there is none
	awaiting atomic.Bool  // the restore waits until all members of the group are ready

	restore string                         // directory of the images it is restored from; empty: started afresh
	ipc     *criu.IPC                      // the IPC namespace of its pod; nil: it has its own, or is not restored
	work    string                         // where CRIU leaves its log of the restore
	box     atomic.Pointer[trust.Sandbox]  // has reviewed the images; nil: it has ended, or the restore process has it
	filling atomic.Pointer[worker.Filling] // nil: all memory was there when it began to run
	cgroup  atomic.Value                   // of a restored container: what worker.CgroupOf gives
}

// runtimeContainer is the container as runc knows it.
type runtimeContainer = runc.Container

// newRuntimeContainer calls runc as the stock service does, with a log of its own: the stock service reads reasons from its log.
func newRuntimeContainer(id string, b bundle, namespace string, o *options.Options) runtimeContainer {
	r := process.NewRunc(o.Root, b.dir, namespace, o.BinaryName, o.SystemdCgroup)
	r.Log = filepath.Join(b.dir, "cryo-runc.json")
	return runtimeContainer{ID: id, Bundle: b.dir, Mark: b.mark, Runtime: r}
}
