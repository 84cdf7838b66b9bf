package main

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/shim/node"
	"github.com/cryo-project/cryo/shim/worker"
)

// waitingPause is how long a group waits before a node writes the reason into its status, and how long a node waits between two writes.
const waitingPause = 3 * time.Second

// sources matches the local ends of connections in errors, which differ each time.
var sources = regexp.MustCompile(`[^ ]+:[0-9]+->`)

// waitingReason returns why a group waits as a status shows it: the same text for the same reason.
func waitingReason(why error) string {
	return sources.ReplaceAllString(reasonOf(why, failure.Hint(why)), "")
}

// delay notes why the group does not begin yet, and shows it in the status. It reports whether this node looks again although none of its containers waits. nodes are those of the group's pods.
func (g *podGroup) delay(ctx context.Context, o *groupObject, nodes []string, why error) (again bool) {
	reason := waitingReason(why)
	g.mu.Lock()
	logged := g.waits != nil && waitingReason(g.waits) == reason
	g.waits = why
	g.mu.Unlock()
	if !logged {
		g.log(node.Entry{What: "restore CheckpointGroup " + o.Namespace + "/" + o.Name + ", which waits", Reference: o.Spec.Reference, Err: why, Again: watchAgain.Seconds()})
	}
	return g.showWaiting(ctx, o, nodes, reason)
}

// showWaiting writes the reason into the summary, if this node is the one that writes it and the summary of o has another reason. It tries once, and the API server refuses a write that is not based on the latest state.
func (g *podGroup) showWaiting(ctx context.Context, o *groupObject, nodes []string, reason string) (again bool) {
	own := slices.Contains(nodes, g.node)
	_, has := o.Status.Nodes[g.node]
	switch {
	case o.Status.Phase != "" && o.Status.Phase != groupWaiting:
		return false
	case !o.showsWaiting(g.node, nodes), o.Status.Phase == groupWaiting && o.Status.Reason == reason:
		return own && has
	case g.show.IsZero():
		g.show = time.Now().Add(waitingPause)
	}
	if time.Now().Before(g.show) {
		return true
	}
	g.show = time.Now().Add(waitingPause)
	data, err := o.patch(groupSummary{Phase: groupWaiting, Reason: reason}, map[string]nodeShare{g.node: {Instance: g.instance}})
	if err == nil {
		_ = g.patch(ctx, data) // else this node looks again: another was first, or the API server is away
	}
	return true
}

// showsWaiting reports whether a node writes the reason for which the group waits. nodes are those of the pods, in the order of the pods' names: the first of them that has an entry in the status writes, or that is the asking node. A node makes its entry with its first write, so few nodes of many have one.
func (o *groupObject) showsWaiting(node string, nodes []string) bool {
	for _, n := range nodes {
		if _, has := o.Status.Nodes[n]; has || n == node {
			return n == node
		}
	}
	_, has := o.Status.Nodes[node] // the pods of the nodes that have an entry are gone, and one of these writes that
	return has
}

// begun reports whether the node has taken part in the group. A node that has not taken part may have an entry too, which it made when it wrote the reason.
func (s nodeShare) begun() bool { return s.Leads != nil || len(s.Members) > 0 }

// maxAbsent is how many members without a pod a status names.
const maxAbsent = 8

// awaitsPods returns why a group waits whose members are absent.
func awaitsPods(absent []string) error {
	named := strings.Join(absent[:min(len(absent), maxAbsent)], ", ")
	if more := len(absent) - maxAbsent; more > 0 {
		named += fmt.Sprintf(" and %d more", more)
	}
	return failure.New(errdefs.ErrUnavailable, "see kubectl get pods -o wide, and annotation "+worker.MemberAnnotation, "no pod on a node is for the members %s", named)
}

// awaitsFirst returns why a group waits that has all its pods: the node of the first coordinates as soon as that pod's container waits there.
func awaitsFirst(p groupPlan) error {
	return failure.New(errdefs.ErrUnavailable, "see kubectl describe pod "+p.Name+", and whether cryo node runs there", "the container of pod %s is not yet to be restored on node %s", p.Name, p.Node)
}
