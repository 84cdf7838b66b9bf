package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/shim/node"
)

// groupService takes part in the groups of a cluster for one node. It watches CheckpointGroups, acts for the containers of its node, and writes what it does into its own share of a group's status. It speaks to the
// API server and to no other node.
type groupService struct {
	app      *app
	client   dynamic.Interface
	node     string
	instance string // of this process
	log      func(node.Entry)
	pulse    *groupPulse
	work     sync.WaitGroup

	mu      sync.Mutex
	groups  map[types.UID]*podGroup // guarded by mu
	waiting map[*waitingPod]bool    // for their groups; guarded by mu
	closing bool                    // no further group is begun; guarded by mu
}

// serveGroups takes part in groups until ctx ends, and what it has begun is over.
func (a *app) serveGroups(ctx context.Context, client dynamic.Interface, name string, log func(node.Entry)) {
	s := &groupService{
		app: a, client: client, node: name, instance: strings.ToLower(rand.Text()), log: log,
		pulse: newGroupPulse(client, name, leaseNamespace()), groups: map[types.UID]*podGroup{}, waiting: map[*waitingPod]bool{},
	}
	go s.listenForPods(ctx)
	s.run(ctx)
}

// leaseNamespace returns the namespace of the nodes' leases: that of this pod, else that of contrib/kubernetes.
func leaseNamespace() string {
	text, err := os.ReadFile("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
	if name := strings.TrimSpace(string(text)); err == nil && name != "" {
		return name
	}
	return "cryo-system"
}

const (
	watchAgain  = time.Second // after which a watch that has ended begins anew
	absentAgain = time.Minute // where the cluster has no CheckpointGroups, or does not let this node see them
	apiTime     = 10 * time.Second
)

func (s *groupService) run(ctx context.Context) {
	watching, stop := context.WithCancel(context.WithoutCancel(ctx)) // until what was begun is over
	go func() {
		<-ctx.Done()
		s.mu.Lock()
		s.closing = true
		s.mu.Unlock()
		s.work.Wait()
		stop()
	}()
	for said := false; watching.Err() == nil; {
		err := s.watch(ctx, watching)
		if watching.Err() != nil {
			return
		}
		next := watchAgain
		if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
			next = absentAgain
		}
		if err != nil && !said {
			s.log(node.Entry{What: "watch CheckpointGroups", Err: err, Again: next.Seconds()})
		}
		said = err != nil
		select {
		case <-watching.Done():
		case <-time.After(next):
		}
	}
}

// watch takes part in all groups that there are, and that come, until the watch or watching ends. ctx is that of the work.
func (s *groupService) watch(ctx, watching context.Context) error {
	listing, cancel := context.WithTimeout(watching, apiTime)
	list, err := s.client.Resource(groupResource).List(listing, metav1.ListOptions{})
	cancel()
	if err != nil {
		return err
	}
	there := map[types.UID]bool{}
	for i := range list.Items {
		there[list.Items[i].GetUID()] = true
		s.saw(ctx, &list.Items[i])
	}
	s.mu.Lock()
	var gone []*podGroup
	for uid, g := range s.groups {
		if !there[uid] {
			gone = append(gone, g)
			delete(s.groups, uid)
		}
	}
	s.mu.Unlock()
	for _, g := range gone {
		g.update(nil)
	}
	w, err := s.client.Resource(groupResource).Watch(watching, metav1.ListOptions{ResourceVersion: list.GetResourceVersion()})
	if err != nil {
		return err
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		o, is := e.Object.(*unstructured.Unstructured)
		switch {
		case e.Type == watch.Error:
			return apierrors.FromObject(e.Object)
		case !is:
		case e.Type == watch.Added, e.Type == watch.Modified:
			s.saw(ctx, o)
		case e.Type == watch.Deleted:
			s.mu.Lock()
			g := s.groups[o.GetUID()]
			delete(s.groups, o.GetUID())
			s.mu.Unlock()
			if g != nil {
				g.update(nil)
			}
		}
	}
	return nil
}

// saw takes a group as it is now.
func (s *groupService) saw(ctx context.Context, u *unstructured.Unstructured) {
	o, err := decode[groupObject](u)
	if err != nil {
		s.log(node.Entry{What: "a CheckpointGroup that this release cannot read", Err: err})
		return
	}
	s.mu.Lock()
	g := s.groups[o.UID]
	if g != nil || s.closing {
		s.mu.Unlock()
		if g != nil {
			g.update(o)
		}
		return
	}
	g = &podGroup{groupService: s, object: o, changed: make(chan struct{}), dirty: make(chan struct{}, 1), share: nodeShare{Instance: s.instance}}
	s.groups[o.UID] = g
	s.work.Go(func() { g.attend(ctx) })
	s.mu.Unlock()
}

// selected returns the pods of a group.
func (s *groupService) selected(ctx context.Context, o *groupObject) (pods []groupPod, err error) {
	selector, err := metav1.LabelSelectorAsSelector(&o.Spec.Selector)
	if err == nil && selector.Empty() {
		err = errors.New("it selects all pods of the namespace")
	}
	if err != nil {
		return nil, failure.New(errdefs.ErrInvalidArgument, "see kubectl explain checkpointgroup.spec.selector", "read spec.selector: %v", err)
	}
	ctx, cancel := context.WithTimeout(ctx, apiTime)
	defer cancel()
	list, err := s.client.Resource(podResource).Namespace(o.Namespace).List(ctx, metav1.ListOptions{LabelSelector: selector.String()})
	if err != nil {
		return nil, fmt.Errorf("list the pods of the group: %w", err)
	}
	for i := range list.Items {
		p, err := decode[groupPod](&list.Items[i])
		if err != nil {
			return nil, err
		}
		pods = append(pods, *p)
	}
	return pods, nil
}

// quiet returns an app that prints nothing: what becomes of a group is in its status.
func (s *groupService) quiet() *app {
	a := s.app
	return &app{stdout: io.Discard, stderr: io.Discard, namespace: a.namespace, address: a.address, root: a.root, configPath: a.configPath, showProgress: progressNone}
}
