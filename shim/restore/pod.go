package restore

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/shim/worker"
)

// The container of a pod with [worker.GroupAnnotation] is restored in step with those of other pods. cryo node of the same host permits each step, by what the group's object in Kubernetes has.

// nodeTime is how long the restore process looks for cryo node, which may be starting.
const nodeTime = 20 * time.Second

const nodeHint = "see whether cryo node runs on this node: kubectl -n cryo-system get pods -o wide"

var errNodeGone = failure.New(errdefs.ErrUnavailable, nodeHint, "restore a member of a group: cryo node of this host has ended")

// join waits until cryo node names the snapshot of a container that is to be a member of a group. ordinary: the container is started instead. A container that is restored alone joins nothing.
func (v *serving) join() (ordinary bool, err error) {
	if v.request.Group == "" {
		return false, nil
	}
	labels := v.asker.info.Labels
	pod := worker.Pod{
		Group: v.request.Group, Namespace: labels[worker.PodNamespace], Name: labels[worker.PodName], UID: labels[worker.PodUID], Container: labels[worker.InPod], ID: v.request.ID,
	}
	if pod.UID == "" || pod.Name == "" || pod.Namespace == "" {
		return false, failure.New(errdefs.ErrInvalidArgument, "leave the annotation out, and restore containers of other clients with cryo restore --group", "annotation %s=%s: the container is of no pod", worker.GroupAnnotation, pod.Group)
	}
	if v.report, err = openNode(v.ctx, v.config.Root); err != nil {
		return false, err
	}
	go v.follow(errNodeGone)
	p, err := v.report.Pass(v.ctx, worker.Reached{Step: worker.Joining, Pod: &pod})
	v.request.Ref = p.Ref
	return err == nil && p.Ref == "", err
}

// openNode reaches cryo node of this host.
func openNode(ctx context.Context, root string) (*worker.Report, error) {
	for late := time.After(nodeTime); ; {
		r, err := worker.OpenNode(root)
		if err == nil {
			return r, nil
		}
		select {
		case <-time.After(time.Second / 2):
		case <-late:
			return nil, failure.New(errdefs.ErrUnavailable, nodeHint, "restore a member of a group: no cryo node answers on this host: %w", err)
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// follow calls the restore off when the other end of the report does, or has ended, unless the container runs. gone is the reason where the other end has named none.
func (v *serving) follow(gone error) {
	err := cmp.Or(v.report.Left(), gone)
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.running {
		v.cancel(err)
	}
}

// placed reports the addresses that a member of a group will have, and waits for those of all others.
func (v *serving) placed(o Options) error {
	if v.request.Group == "" {
		return nil
	}
	addresses, err := worker.AddressesOf(o.Spec)
	if err != nil {
		return err
	}
	p, err := v.report.Pass(v.ctx, worker.Reached{Step: worker.Placed, Addresses: addresses})
	if err == nil && p.Together == nil {
		err = failure.New(errdefs.ErrFailedPrecondition, "install one release of cryo on the node", "restore a member of a group: cryo node has named no other member")
	}
	v.members = p.Together
	return err
}

// refuse answers each request of the shim with the reason, until the shim closes the conversation. The shim passes the reason on to the container's client.
func (v *serving) refuse(shim *worker.Conversation, reason error) {
	if v.request.Group == "" || errors.Is(reason, errGone) {
		return
	}
	for {
		if _, ok, err := shim.Next(context.Background()); !ok || err != nil {
			return
		}
		shim.Tell(worker.Message{Failed: failure.Of(reason)})
	}
}
