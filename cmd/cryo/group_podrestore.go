package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/registry"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/shim/node"
	"github.com/cryo-project/cryo/shim/worker"
)

// groupSource is what a group of pods is restored from, as this node reads it. No node takes another's word for it.
type groupSource struct {
	index  image.Group
	at     groupIndex
	refs   map[string]string // the snapshot of each member by its name
	nodes  []string          // of the pods, in the order of the pods' names; known before the index is
	pods   []groupPlan       // that are on a node, in the order of their names
	member map[types.UID]string
	absent []string // members without a pod on a node
}

// attendRestore does what this node has to do for a group that is restored. It begins when a container of this node waits for the group, or another node's coordinator names a pod of this node. A node that has written what the group waits for looks on while none of its containers waits.
func (g *podGroup) attendRestore(ctx context.Context) {
	defer g.writing(ctx)()
	var parts sync.WaitGroup
	defer parts.Wait()
	var from groupSource
	leads := false
	tick := time.NewTicker(watchAgain)
	defer tick.Stop()
	first, _, _ := g.now()
	_, again := first.Status.Nodes[g.node]
	for {
		o, gone, changed := g.now()
		if gone || o.Status.over() {
			return
		}
		here := o.names(g.node) || len(g.waitingFor(o)) > 0
		if here || again {
			err := g.look(ctx, o, &from)
			switch {
			case ctx.Err() != nil:
				return
			case isLasting(err):
				g.conclude(ctx, o.ended("", err))
				return
			case err != nil:
				again = g.delay(ctx, o, from.nodes, fmt.Errorf("on node %s: %w", g.node, err))
			case len(from.absent) > 0:
				again = g.delay(ctx, o, from.nodes, awaitsPods(from.absent))
			case from.pods[0].Node == g.node && here && !leads:
				leads = true
				parts.Go(func() { g.coordinateRestore(ctx, from) })
			default:
				lead := from.pods[0].Node // any other has no say
				if share := o.Status.Nodes[lead].Leads; share != nil {
					g.members(ctx, lead, *share, from.find, func(p groupPlan, _ string) error { return g.restoreMember(ctx, lead, p, from) })
					return
				}
				if !leads && o.Status.Phase != groupRunning {
					again = g.delay(ctx, o, from.nodes, awaitsFirst(from.pods[0]))
				}
			}
		}
		select {
		case <-changed:
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// isLasting reports whether an error stays however long the group waits.
func isLasting(err error) bool {
	return errdefs.IsInvalidArgument(err) || errdefs.IsNotFound(err) || errdefs.IsPermissionDenied(err)
}

// names reports whether a coordinator names a pod of the node.
func (o *groupObject) names(node string) bool {
	for _, share := range o.Status.Nodes {
		if share.Leads != nil && slices.ContainsFunc(share.Leads.Members, func(p groupPlan) bool { return p.Node == node }) {
			return true
		}
	}
	return false
}

// look reads the pods that there are by now, and the index of the group once.
func (g *podGroup) look(ctx context.Context, o *groupObject, from *groupSource) error {
	pods, err := g.selected(ctx, o)
	if err != nil {
		return err
	}
	from.nodes = nil
	for _, p := range counted(pods) {
		if p.Spec.NodeName != "" {
			from.nodes = append(from.nodes, p.Spec.NodeName)
		}
	}
	if from.at.Ref == "" {
		full, err := store.Normalize(o.Spec.Reference)
		if err != nil {
			return err
		}
		_, options, err := g.registryOf(full)
		if err != nil {
			return err
		}
		reading, cancel := context.WithTimeout(ctx, apiTime)
		defer cancel()
		index, d, err := registry.ReadGroup(reading, full, options)
		if err != nil {
			return err
		}
		from.index, from.at, from.refs = index, groupIndex{full, d}, snapshotsOf(full, index)
	}
	if err := from.place(o, pods); err != nil {
		return err
	}
	for _, p := range from.pods {
		g.startOthers(o, p.UID, from.member[p.UID])
	}
	return nil
}

// counted returns the pods of a restore in the order of their names. Those that have ended, or are being deleted, do not count.
func counted(pods []groupPod) (all []groupPod) {
	for _, p := range pods {
		if p.DeletionTimestamp == nil && p.Status.Phase != "Succeeded" && p.Status.Phase != "Failed" {
			all = append(all, p)
		}
	}
	slices.SortFunc(all, func(a, b groupPod) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// place pairs pods with members.
func (s *groupSource) place(o *groupObject, pods []groupPod) error {
	s.pods, s.member, s.absent = nil, map[types.UID]string{}, nil
	by := map[string]string{} // the pod of each member
	for _, p := range counted(pods) {
		if p.Annotations[worker.GroupAnnotation] != o.Name {
			return failure.New(errdefs.ErrInvalidArgument, "narrow spec.selector, or create the pod with the annotation", "the selector matches pod %s, which has no annotation %s=%s", p.Name, worker.GroupAnnotation, o.Name)
		}
		name, err := p.memberOf(s.index)
		if err != nil {
			return err
		}
		if by[name] != "" {
			return failure.New(errdefs.ErrInvalidArgument, "name the member of each pod by annotation "+worker.MemberAnnotation, "the pods %s and %s are both for the member %s", by[name], p.Name, name)
		}
		by[name] = p.Name
		container, err := p.containerName(o.Spec.Container)
		if err != nil {
			return err
		}
		if p.Spec.NodeName == "" {
			by[name] = ""
			continue
		}
		s.member[p.UID] = container
		s.pods = append(s.pods, groupPlan{Name: p.Name, Member: name, UID: p.UID, Node: p.Spec.NodeName})
	}
	for _, m := range s.index.Members {
		if by[m.Name] == "" {
			s.absent = append(s.absent, m.Name)
		}
	}
	return nil
}

// randomName is how many characters the API server adds to the names of pods, and generatedName how many it keeps of what their controller has begun with. Source: Kubernetes, apiserver/pkg/storage/names.
const randomName, generatedName = 5, 58

// memberOf returns the member of the index that the pod restores. It is the one that the pod's annotation names, else the one with the pod's name, else the only one whose name differs in nothing but the characters that a controller has added.
func (p groupPod) memberOf(index image.Group) (string, error) {
	named, given := p.Annotations[worker.MemberAnnotation]
	begun := p.GenerateName[:min(len(p.GenerateName), generatedName)]
	var like []string
	for _, m := range index.Members {
		switch {
		case given && m.Name == named, !given && m.Name == p.Name:
			return m.Name, nil
		case !given && begun != "" && len(m.Name) == len(begun)+randomName && strings.HasPrefix(m.Name, begun):
			like = append(like, m.Name)
		}
	}
	if len(like) == 1 {
		return like[0], nil
	}
	const hint = "name it by annotation " + worker.MemberAnnotation + " of the pod; the members' names are those of the pods that the checkpoint was taken of"
	if given {
		return "", failure.New(errdefs.ErrInvalidArgument, hint, "the group has no member %s, which pod %s names", named, p.Name)
	}
	return "", failure.New(errdefs.ErrInvalidArgument, hint, "it is not known which member of the group pod %s is", p.Name)
}

// find returns an error if the coordinator's pod is not one that this node has found itself.
func (s groupSource) find(p groupPlan) (string, error) {
	for _, own := range s.pods {
		if own.UID == p.UID && own.Name == p.Name && own.Member == p.Member && own.Node == p.Node {
			return "", nil
		}
	}
	return "", failure.New(errdefs.ErrNotFound, "create another CheckpointGroup", "the pod %s that the coordinator has found for the member %s is not on node %s", p.Name, p.Member, p.Node)
}

// restoreMember runs a member of this node through the restore.
func (g *podGroup) restoreMember(ctx context.Context, lead string, p groupPlan, from groupSource) error {
	o, _, _ := g.now()
	if l := o.Status.Nodes[lead].Leads; l == nil || l.Index == nil || l.Index.Digest != from.at.Digest {
		return failure.New(errdefs.ErrUnavailable, "create another CheckpointGroup", "%s stands for another index on node %s than on node %s", o.Spec.Reference, g.node, lead)
	}
	m := &groupMember{app: g.quiet(), line: g.memberLine(lead, p.Name, groupAsk{Protocol: groupProtocol, Namespace: g.app.namespace, Restore: &groupRestore{Ref: from.refs[p.Member]}}, from.index)}
	m.endPod = func(ctx context.Context, id string) error { return m.app.endPod(ctx, id, p.UID) }
	m.inPod = func(ctx context.Context) (any, string, error) {
		w, err := g.awaitPod(ctx, p.UID, from.member[p.UID])
		if err != nil {
			return nil, "", err
		}
		g.edit(func(s *nodeShare) {
			s.Members = cloned(s.Members, p.Name, func(m *memberShare) { m.Container = w.ID })
		})
		r, err := g.restorePod(ctx, w, from.refs[p.Member], m.reach)
		return r, w.ID, err
	}
	err := m.takePart(ctx)
	m.line.close()
	<-m.line.flushed
	return err
}

// coordinateRestore leads all members through the steps, and writes what has become of the group.
func (g *podGroup) coordinateRestore(ctx context.Context, from groupSource) {
	leave := g.pulse.enter(ctx)
	defer leave()
	o, _, _ := g.now()
	run := &groupRun{app: g.quiet(), what: "restore", state: newCoordination(restoreSteps, len(from.pods)), late: time.After(o.holdTime())}
	run.permit = func(step worker.Step) (*worker.Together, error) {
		if step != worker.Placed {
			return nil, nil
		}
		return together(from.index, run.addresses(), nil)
	}
	err := g.leadAll(ctx, run, groupLead{Members: from.pods, Index: &from.at})
	if errors.Is(err, errNotWanted) {
		return
	}
	var restored digest.Digest
	if run.state.decided {
		restored = from.at.Digest
	}
	if err == nil && restored == "" {
		err = errors.New("it was called off")
	}
	g.conclude(ctx, o.ended(restored, err))
}

// endLeft ends the containers of a group that is not restored, if an earlier cryo node of this host has started them. left are their members.
func (g *podGroup) endLeft(ctx context.Context, left map[string]memberShare) {
	o, _, _ := g.now()
	if !o.restores() || o.Status.Phase != groupFailed {
		return
	}
	for name, m := range left {
		if m.Container == "" {
			continue
		}
		if err := g.app.endPod(ctx, m.Container, m.UID); err != nil {
			g.log(node.Entry{What: "end pod " + o.Namespace + "/" + name + " of a group that is not restored", Container: m.Container, Err: err})
		}
	}
}

// leftHint is what a user does about a member whose cryo node has ended.
func (o *groupObject) leftHint() string {
	if o.restores() {
		return "delete the pods of the group, and create another CheckpointGroup and other pods"
	}
	return "its container runs on, unless the group was published without leaveRunning"
}
