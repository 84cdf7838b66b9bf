package main

import (
	"context"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
)

// groupPulse are the signs of life of nodes that take part in a group: each renews a lease of its own name. One that is not seen to be renewed for silentTime is silent. Clocks of nodes are not compared.
type groupPulse struct {
	client          dynamic.Interface
	node, namespace string

	mu     sync.Mutex
	users  int                // groups in which this node takes part; guarded by mu
	cancel context.CancelFunc // of the renewing; guarded by mu
	seen   map[string]sign    // by node; guarded by mu
}

// sign is a sign of life.
type sign struct {
	renewed string // as the lease has it
	at      time.Time
}

// pulseTime is the time between two signs of life.
const pulseTime = 3 * time.Second

func newGroupPulse(client dynamic.Interface, node, namespace string) *groupPulse {
	return &groupPulse{client: client, node: node, namespace: namespace}
}

// enter starts to renew this node's lease, and to watch the leases of other nodes, until leave is called.
func (p *groupPulse) enter(ctx context.Context) (leave func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.users++; p.users == 1 {
		p.seen = map[string]sign{}
		ctx, p.cancel = context.WithCancel(context.WithoutCancel(ctx)) // what was begun is ended in order
		go p.beat(ctx)
	}
	return sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.users--; p.users == 0 {
			p.cancel()
		}
	})
}

func (p *groupPulse) beat(ctx context.Context) {
	tick := time.NewTicker(pulseTime)
	defer tick.Stop()
	for {
		p.renew(ctx)
		p.look(ctx)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// renew renews the node's own lease. A node that cannot is taken for silent by the others.
func (p *groupPulse) renew(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, apiTime)
	defer cancel()
	o := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"holderIdentity": p.node, "leaseDurationSeconds": int64(silentTime.Seconds()), "renewTime": time.Now().UTC().Format(metav1.RFC3339Micro),
	}}}
	o.SetAPIVersion(leaseResource.GroupVersion().String())
	o.SetKind("Lease")
	o.SetName(p.node)
	_, _ = p.client.Resource(leaseResource).Namespace(p.namespace).Apply(ctx, p.node, o, metav1.ApplyOptions{FieldManager: "cryo-node", Force: true})
}

// look looks at all leases.
func (p *groupPulse) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, apiTime)
	defer cancel()
	list, err := p.client.Resource(leaseResource).Namespace(p.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return // all are silent that remain so
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, o := range list.Items {
		renewed, _, _ := unstructured.NestedString(o.Object, "spec", "renewTime")
		if p.seen[o.GetName()].renewed != renewed {
			p.seen[o.GetName()] = sign{renewed, time.Now()}
		}
	}
}

// silent reports whether a node that is expected since some time has given no sign of life for silentTime. The first look at a lease counts as one.
func (p *groupPulse) silent(node string, since time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if last := p.seen[node].at; last.After(since) {
		since = last
	}
	return time.Since(since) > silentTime
}
