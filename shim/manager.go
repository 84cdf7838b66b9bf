package shim

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"time"

	bootapi "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/manager"
	stock "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/runc"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/shim"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/runtime/runc"
	"github.com/cryo-project/cryo/shim/worker"
)

// shimManager is the stock manager, which starts shims and cleans up after dead ones, with what cryo adds to both.
type shimManager struct {
	shim.Shim
}

func newManager() shim.Shim { return shimManager{manager.NewShimManager(Name)} }

// Start starts the process that serves, unless one does for the pod.
func (m shimManager) Start(ctx context.Context, params *bootapi.BootstrapParams) (*bootapi.BootstrapResult, error) {
	collectLater()
	return m.Shim.Start(ctx, params)
}

// deleteTime is how long runc may take to forget the container of a dead shim. containerd kills the process that cleans up after five seconds.
const deleteTime = 3 * time.Second

// Stop cleans up after a shim that died. A dump it had under way is ended, and what it froze for it is thawed first,
// since a frozen process cannot be ended on cgroup v1. Of a restore it had under way nothing is left. What runc has by the container's name is left alone
// if it is another containerd's, or if the shim had not come to ask runc for anything.
func (m shimManager) Stop(ctx context.Context, id string) (shim.StopStatus, error) {
	cwd, err := os.Getwd()
	if err != nil {
		return shim.StopStatus{}, err
	}
	bundle := filepath.Join(filepath.Dir(cwd), id)
	dumping, err := endBegun(bundle, dumpFile)
	warn(ctx, "end the dump of a dead shim", err)
	restoring, err := endBegun(bundle, restoreFile)
	warn(ctx, "end the restore of a dead shim", err)
	c, err := containerOf(ctx, bundle, id)
	if err == nil {
		err = c.Foreign()
	}
	ours := err == nil // else runc is not asked
	if err != nil {
		log.G(ctx).WithError(err).Warn("find the container of a dead shim")
	} else {
		if _, err := os.Lstat(filepath.Join(bundle, poolFile)); err == nil { // it must not run
			warn(ctx, "end a member of a pool whose shim has died", c.Kill(ctx))
		}
		warn(ctx, "thaw the container of a dead shim", c.Thaw(ctx))
		if dumping != "" {
			warn(ctx, "unlock the network of the container of a dead shim", c.Unlock(ctx, dumping))
		}
		if restoring != "" {
			warn(ctx, "remove what the restore of a dead shim has left", c.SweepRestore())
		}
	}
	// CRIU, which is there already, is not told by its work directory any more where the command has removed that meanwhile. runc would wait for it.
	_ = runc.EndClaim(bundle) // tried again below
	if restoring != "" {
		warn(ctx, "unmount what CRIU has left of the restore of a dead shim", unmountYard(restoring))
	}
	unified := ""
	if ours {
		unified = c.Unified()
	}
	warn(ctx, "remove the sockets of a dead shim", removeSockets(ctx, bundle, id))
	status := shim.StopStatus{ExitedAt: time.Now(), ExitStatus: 128 + int(unix.SIGKILL)}
	var stopped error
	if !ours {
		stopped = mount.UnmountRecursive(filepath.Join(bundle, "rootfs"), 0)
	} else {
		status, stopped = m.Shim.Stop(ctx, id)
		deleting, cancel := context.WithTimeout(ctx, deleteTime)
		defer cancel()
		warn(ctx, "have runc forget the container of a dead shim", c.Delete(deleting))
		removeHybrid(unified)
	}
	warn(ctx, "undo what the restore of a dead shim has changed in the root file system", worker.UndoRootfs(bundle))
	warn(ctx, "remove the cgroup that the restore of a dead shim has left", runc.EndClaim(bundle))
	warn(ctx, "remove the directory a container was restored from", removeOwned(bundle))
	return status, stopped
}

// Info takes options of every kind, where the stock manager takes runc's only.
func (m shimManager) Info(ctx context.Context, options io.Reader) (*types.RuntimeInfo, error) {
	data, err := io.ReadAll(options)
	if err != nil {
		return nil, err
	}
	runcOptions, err := convertInfoOptions(data)
	if err != nil {
		return nil, err
	}
	return m.Shim.Info(ctx, runcOptions)
}

// containerOf returns the container of a bundle by what the stock service wrote there.
func containerOf(ctx context.Context, dir, id string) (runtimeContainer, error) {
	ns, err := namespaces.NamespaceRequired(ctx)
	if err != nil {
		return runtimeContainer{}, err
	}
	options, err := stock.ReadOptions(dir)
	if err != nil {
		return runtimeContainer{}, err
	}
	if options == nil {
		return runtimeContainer{}, errors.Join(os.ErrNotExist, errdefs.ErrNotFound)
	}
	b := bundle{dir: dir}
	spec, err := b.spec()
	if err != nil {
		return runtimeContainer{}, err
	}
	b.mark = spec.Annotations[runc.MarkAnnotation]
	return newRuntimeContainer(id, b, ns, options), nil
}
