package main

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/runtime/channel"
	"github.com/cryo-project/cryo/shim/node"
	"github.com/cryo-project/cryo/shim/restore"
	"github.com/cryo-project/cryo/shim/worker"
)

// waitingPod is a pod's container that waits for the restore of its group. The container's restore process runs on this host, and waits at each step for the permission of this process.
type waitingPod struct {
	worker.Pod

	to     *channel.Channel
	report *restore.Listener[restore.Result]
	gone   chan struct{}                                                   // closed when the restore process has failed or ended
	joined chan worker.Permission                                          // of capacity 1: the answer to its first step
	pass   atomic.Pointer[func(worker.Reached) (worker.Permission, error)] // the function that permits the steps after the first; nil: the container has not joined
}

// joinTime is how long a container waits for the restore of its group to begin. The kubelet waits for two minutes: the container's pod learns the reason before.
const joinTime = time.Minute

// listenForPods accepts the connections of restore processes whose containers wait for their groups, until ctx ends.
func (s *groupService) listenForPods(ctx context.Context) {
	l, err := s.openForPods()
	for err == nil {
		var c *channel.Channel
		if c, err = l.Accept(ctx); err == nil {
			s.receive(ctx, c)
		}
	}
	if ctx.Err() == nil {
		s.log(node.Entry{What: "wait for the pods of groups; none is restored", Err: err})
	}
}

func (s *groupService) openForPods() (*channel.Listener, error) {
	c, err := s.app.config()
	if err != nil {
		return nil, err
	}
	return worker.ListenForPods(c.Root)
}

// receive handles the connection of one restore process.
func (s *groupService) receive(ctx context.Context, c *channel.Channel) {
	w := &waitingPod{to: c, gone: make(chan struct{}), joined: make(chan worker.Permission, 1)}
	w.report = restore.Attend[restore.Result](c, restore.Hooks{Step: func(_ context.Context, at worker.Reached) (p worker.Permission, err error) {
		pass := w.pass.Load()
		switch {
		case at.Step == worker.Joining && at.Pod != nil:
			w.Pod = *at.Pod
			p, err = s.join(ctx, w)
		case pass != nil:
			p, err = (*pass)(at)
		default:
			err = failure.New(errdefs.ErrFailedPrecondition, "install one release of cryo on the node", "the step %s comes before the container has joined a group", at.Step)
		}
		if err != nil {
			w.refuse(err)
		}
		return p, err
	}})
	go func() {
		_, _ = w.report.Await(context.Background(), func(*restore.Result) bool { return false })
		close(w.gone)
	}()
}

// refuse calls the restore off, and sends the reason, which the container's client receives.
func (w *waitingPod) refuse(reason error) {
	_ = w.to.Send(worker.Permission{Failed: failure.Of(reason)}) // to a process that may have ended
	w.report.CallOff()
}

// join waits until the group of a container begins to be restored, or it is known that the container is started or refused.
func (s *groupService) join(ctx context.Context, w *waitingPod) (worker.Permission, error) {
	s.mu.Lock()
	s.waiting[w] = true
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.waiting, w)
		s.mu.Unlock()
	}()
	tick := time.NewTicker(watchAgain)
	defer tick.Stop()
	for late := time.After(joinTime); ; {
		g := s.groupOf(w.Pod)
		if g != nil {
			o, _, _ := g.now()
			if starts, err := o.verdict(w.Pod); err != nil || starts {
				return worker.Permission{}, err
			}
			g.nudge()
		}
		select {
		case p := <-w.joined:
			return p, nil
		case <-tick.C:
		case <-late:
			return worker.Permission{}, s.notBegun(g, w.Pod)
		case <-w.gone:
			return worker.Permission{}, errPodGone
		case <-ctx.Done():
			return worker.Permission{}, context.Cause(ctx)
		}
	}
}

var errPodGone = failure.New(errdefs.ErrAborted, "see kubectl describe pod: the pod was deleted, or the kubelet waited no longer (its runtimeRequestTimeout is two minutes)", "the restore of its container was called off on its node")

// notBegun returns why a container has waited in vain.
func (s *groupService) notBegun(g *podGroup, pod worker.Pod) error {
	if g == nil {
		return failure.New(errdefs.ErrNotFound, "create it, with operation: Restore", "namespace %s has no CheckpointGroup %s, which annotation %s names", pod.Namespace, pod.Group, worker.GroupAnnotation)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.waits != nil {
		return failure.New(errdefs.ErrUnavailable, failure.Hint(g.waits), "CheckpointGroup %s waits: %w", pod.Group, g.waits)
	}
	return failure.New(errdefs.ErrUnavailable, "see kubectl -n cryo-system logs -l app.kubernetes.io/name=cryo-node", "CheckpointGroup %s has not begun within %s", pod.Group, joinTime)
}

// groupOf returns the group that a pod names; nil: there is none.
func (s *groupService) groupOf(pod worker.Pod) *podGroup {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.groups {
		if o, gone, _ := g.now(); !gone && o.Namespace == pod.Namespace && o.Name == pod.Group {
			return g
		}
	}
	return nil
}

// waitingFor returns the containers of this node that wait for a group.
func (s *groupService) waitingFor(o *groupObject) (all []*waitingPod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.waiting {
		if w.Namespace == o.Namespace && w.Group == o.Name {
			all = append(all, w)
		}
	}
	return all
}

// verdict decides by the group's object what becomes of a container that waits: it is started, since it is no member or its group was restored before; it is refused; or it waits, where the result is neither.
func (o *groupObject) verdict(pod worker.Pod) (starts bool, err error) {
	const another = "create another CheckpointGroup, and pods that name it"
	if !o.restores() {
		return false, failure.New(errdefs.ErrInvalidArgument, "name one with operation: Restore", "CheckpointGroup %s takes a checkpoint, and restores no pod", o.Name)
	}
	if named := o.Spec.Container; named != "" && named != pod.Container {
		return true, nil
	}
	var own *memberShare
	for _, share := range o.Status.Nodes {
		if m, is := share.Members[pod.Name]; is && m.UID == types.UID(pod.UID) {
			own = &m
		}
	}
	switch {
	case own != nil && o.Status.Phase == groupRestored:
		return true, nil
	case o.Status.over():
		return false, failure.New(errdefs.ErrFailedPrecondition, another, "CheckpointGroup %s does not restore pod %s, its phase is %s: %s", o.Name, pod.Name, o.Status.Phase, o.Status.Reason)
	case own != nil && own.Failed != nil:
		return false, failure.New(errdefs.ErrAborted, another, "CheckpointGroup %s is not restored: %s", o.Name, own.Failed.Message)
	}
	return false, nil
}

// nudge wakes the group, which then looks at the containers that wait.
func (g *podGroup) nudge() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.wake()
}

// startOthers permits the start of those containers of a pod that are no members of its group.
func (g *podGroup) startOthers(o *groupObject, uid types.UID, member string) {
	for _, w := range g.waitingFor(o) {
		if w.UID == string(uid) && w.Container != member {
			w.answer(worker.Permission{})
		}
	}
}

// answer answers the first step, once.
func (w *waitingPod) answer(p worker.Permission) {
	p.Step = worker.Joining
	select {
	case w.joined <- p:
	default:
	}
}

// awaitPod waits for the container of a member.
func (g *podGroup) awaitPod(ctx context.Context, uid types.UID, container string) (*waitingPod, error) {
	for {
		o, _, changed := g.now()
		for _, w := range g.waitingFor(o) {
			if w.UID == string(uid) && w.Container == container {
				return w, nil
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// undoneTime is how long a restore that is called off may take to be undone.
const undoneTime = 30 * time.Second

// restorePod has the container of a pod restored from ref, and returns when it runs, or all is undone. reach is the hook of each step.
func (g *podGroup) restorePod(ctx context.Context, w *waitingPod, ref string, reach func(context.Context, worker.Reached) (worker.Permission, error)) (*restore.Result, error) {
	pass := func(at worker.Reached) (worker.Permission, error) {
		p, err := reach(ctx, at)
		if err != nil && ctx.Err() != nil {
			err = g.whyCalledOff()
		}
		return p, err
	}
	w.pass.Store(&pass)
	w.answer(worker.Permission{Ref: ref})
	runs := func(*restore.Result) bool { return true }
	r, err := w.report.Await(ctx, runs)
	switch {
	case err == nil:
		return r, nil
	case ctx.Err() == nil && errors.Is(err, worker.ErrDied):
		return nil, errPodGone
	case ctx.Err() == nil:
		return nil, err
	}
	w.refuse(g.whyCalledOff())
	undoing, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoneTime)
	defer cancel()
	if r, err := w.report.Await(undoing, runs); err == nil { // the container had begun to run before the restore was called off
		return r, nil
	}
	return nil, context.Cause(ctx)
}

// whyCalledOff returns the reason why the restore of a group is called off, as far as its object has it.
func (g *podGroup) whyCalledOff() error {
	o, gone, _ := g.now()
	const hint = "see kubectl describe checkpointgroup"
	if gone {
		return failure.New(errdefs.ErrAborted, hint, "CheckpointGroup %s is deleted", o.Name)
	}
	for _, share := range o.Status.Nodes {
		for name, m := range share.Members {
			if m.Failed != nil && !errdefs.IsCanceled(m.Failed) {
				return failure.New(errdefs.ErrAborted, hint, "CheckpointGroup %s is not restored: pod %s: %s", o.Name, name, m.Failed.Message)
			}
		}
	}
	return failure.New(errdefs.ErrAborted, hint, "CheckpointGroup %s is not restored", o.Name)
}

// endPod ends the restored container of the pod uid, which the kubelet removes. It leaves a container of another pod alone, whatever an object of the API server names.
func (a *app) endPod(ctx context.Context, id string, uid types.UID) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoneTime)
	defer cancel()
	ctx, client, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	container, err := client.LoadContainer(ctx, id)
	var labels map[string]string
	if err == nil {
		labels, err = container.Labels(ctx)
	}
	if err == nil && labels[worker.PodUID] != string(uid) {
		return failure.New(errdefs.ErrPermissionDenied, "see who has changed the object: its status is for cryo node alone", "end the container %s of a group that is not restored: it is of pod %s, and the member is pod %s", id, labels[worker.PodUID], uid)
	}
	var task containerd.Task
	if err == nil {
		task, err = container.Task(ctx, nil)
	}
	if err == nil {
		err = task.Kill(ctx, unix.SIGKILL)
	}
	if restore.IgnoreNotFound(err) != nil {
		return failure.New(errdefs.ErrUnknown, "delete its pod", "end the container %s of a group that is not restored: %w", id, err)
	}
	return nil
}
