package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/registry"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/shim/node"
	"github.com/cryo-project/cryo/shim/restore"
	"github.com/cryo-project/cryo/shim/worker"
)

// unclaimedTime is how long a group waits for a node that coordinates it. Then the group has failed.
const unclaimedTime = 20 * time.Second

// attend does what this node has to do for the group.
func (g *podGroup) attend(ctx context.Context) {
	o, _, _ := g.now()
	if own := o.Status.Nodes[g.node]; own.begun() {
		g.abandon(ctx, own)
		return
	}
	if o.Status.over() {
		return
	}
	if o.restores() {
		g.attendRestore(ctx)
		return
	}
	pods, err := g.selected(ctx, o)
	for said := false; err != nil; pods, err = g.selected(ctx, o) {
		if errdefs.IsInvalidArgument(err) {
			g.conclude(ctx, o.ended("", err))
			return
		}
		if _, gone, _ := g.now(); gone {
			return
		}
		if !said {
			g.log(node.Entry{What: "look at CheckpointGroup " + o.Namespace + "/" + o.Name, Err: err, Again: watchAgain.Seconds()})
			said = true
		}
		select {
		case <-time.After(watchAgain):
		case <-ctx.Done():
			return
		}
	}
	if _, _, err := o.plan(pods); err != nil && (leader(pods) == g.node || leader(pods) == "") {
		g.conclude(ctx, o.ended("", err))
		return
	}
	defer g.writing(ctx)()
	var parts sync.WaitGroup
	defer parts.Wait()
	if leader(pods) == g.node {
		parts.Go(func() { g.coordinate(ctx, pods) })
	}
	g.takeParts(ctx, leader(pods))
}

// takeParts waits until the coordinator has found the members, and has those of this node take part.
func (g *podGroup) takeParts(ctx context.Context, first string) {
	unclaimed := time.After(unclaimedTime)
	for {
		o, gone, changed := g.now()
		if gone || o.Status.over() {
			return
		}
		claimed := false
		for lead, share := range o.Status.Nodes {
			if share.Leads == nil {
				continue
			}
			claimed = true
			if !slices.ContainsFunc(share.Leads.Members, func(p groupPlan) bool { return p.Node == g.node }) {
				continue
			}
			if pods, err := g.selected(ctx, o); err == nil && leader(pods) == lead { // any other node has no say
				g.members(ctx, lead, *share.Leads, func(p groupPlan) (string, error) {
					i := slices.IndexFunc(pods, func(pod groupPod) bool { return pod.UID == p.UID && pod.Name == p.Name && pod.Spec.NodeName == g.node })
					if i < 0 {
						return "", g.noPod(p)
					}
					return pods[i].container(o.Spec.Container)
				}, func(p groupPlan, id string) error { return g.member(ctx, lead, p.Name, id) })
				return
			}
		}
		if claimed {
			unclaimed = nil
		}
		select {
		case <-changed:
		case <-unclaimed:
			g.conclude(ctx, o.ended("", failure.New(errdefs.ErrUnavailable, "see kubectl -n cryo-system get pods -o wide", "no cryo node answers on node %s, which has the first pod of the group", first)))
		case <-ctx.Done():
			return
		}
	}
}

// noPod returns the error of a member whose pod is not here.
func (g *podGroup) noPod(p groupPlan) error {
	return failure.New(errdefs.ErrNotFound, "create another CheckpointGroup", "the pod %s that the coordinator has found is not on node %s", p.Name, g.node)
}

// members has this node's members take part by take, and waits for the group's result. find returns the id of a member's container, which may be empty until the container exists.
func (g *podGroup) members(ctx context.Context, lead string, plan groupLead, find func(groupPlan) (id string, err error), take func(p groupPlan, id string) error) {
	leave := g.pulse.enter(ctx)
	defer leave()
	var all sync.WaitGroup
	for _, p := range plan.Members {
		if p.Node != g.node {
			continue
		}
		id, err := find(p)
		g.edit(func(s *nodeShare) {
			if s.Members == nil {
				s.Members = map[string]memberShare{}
			}
			s.Members[p.Name] = memberShare{UID: p.UID, Container: id}
		})
		all.Go(func() {
			if err == nil {
				err = take(p, id)
			}
			if err != nil {
				g.note(p.Name, groupMessage{Failed: failure.Of(err)})
			}
		})
	}
	all.Wait()
	if lead != g.node { // else coordinate writes the result
		g.settle(ctx, lead)
	}
}

// note writes what a member of this node sends to the coordinator.
func (g *podGroup) note(name string, message groupMessage) {
	g.edit(func(s *nodeShare) {
		s.Members = cloned(s.Members, name, func(m *memberShare) {
			if !m.ended() {
				m.note(message)
			}
		})
	})
}

// cloned returns the members with a change of one of them.
func cloned(all map[string]memberShare, name string, change func(*memberShare)) map[string]memberShare {
	all = maps.Clone(all)
	m := all[name]
	change(&m)
	all[name] = m
	return all
}

// registryOf returns how this host reaches the registry of a group, which its configuration must allow.
func (g *podGroup) registryOf(full string) (worker.Registry, registry.Options, error) {
	c, err := g.app.config()
	if err != nil {
		return worker.Registry{}, registry.Options{}, err
	}
	o, _, _ := g.now()
	from, rule, table, what := c.Checkpoint, "checkpoint-to", "[checkpoint]", "snapshots of a group to be sent to"
	if o.restores() {
		from, rule, table, what = c.Restore.Policy.Registries, "restore-policy", "[restore.policy]", "a group to be restored from"
	}
	if !from.Allows(full) {
		return worker.Registry{}, registry.Options{}, failure.New(errdefs.ErrPermissionDenied, "add its registry, or the beginning of its repository, to repositories under "+table+" in /etc/cryo/config.toml",
			"%s: the configuration of node %s does not allow %s %s", rule, g.node, what, full).By(rule)
	}
	r := worker.Registry{PlainHTTP: from.Plain(full), Credentials: from.Credentials}
	return r, restore.RegistryOptions(r, c), nil
}

// member has a member of this node take part.
func (g *podGroup) member(ctx context.Context, lead, name, container string) error {
	o, _, _ := g.now()
	full, err := store.Normalize(o.Spec.Reference)
	if err != nil {
		return err
	}
	ref, err := memberRef(full, name)
	if err != nil {
		return err
	}
	to, _, err := g.registryOf(full)
	if err != nil {
		return err
	}
	line := g.memberLine(lead, name, groupAsk{
		Protocol: groupProtocol, Namespace: g.app.namespace, Registry: to,
		Checkpoint: &groupCheckpoint{
			Container: container, Ref: ref, LeaveRunning: o.Spec.LeaveRunning, FileLocks: o.Spec.FileLocks, ExternalUnixSockets: o.Spec.ExternalUnixSockets,
			ReadyTimeout: time.Duration(o.Spec.ReadyTimeoutSeconds) * time.Second, Parent: "none", Compression: "zstd", Discard: true,
		},
	}, image.Group{})
	err = g.quiet().takePart(ctx, line)
	line.close()
	<-line.flushed
	return err
}

// settle waits for the group's result. Where the coordinator is gone without one, it finds out, and writes it.
func (g *podGroup) settle(ctx context.Context, lead string) {
	tick, since := time.NewTicker(watchAgain), time.Now()
	defer tick.Stop()
	for {
		o, gone, changed := g.now()
		if gone || o.Status.over() {
			return
		}
		if g.pulse.silent(lead, since) {
			g.findOut(ctx, lead, "is silent for "+silentTime.String())
			return
		}
		select {
		case <-changed:
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// findOut writes the result of a group whose coordinator is gone: it is published if the registry has the index, and restored if the coordinator has sent that all stay.
func (g *podGroup) findOut(ctx context.Context, lead, why string) {
	o, _, _ := g.now()
	hint := "compare status.nodes with kubectl get pods: each container runs on that has not ended as published"
	if o.restores() {
		hint = "delete its pods, and create another CheckpointGroup and other pods"
	}
	gone := failure.New(errdefs.ErrUnavailable, hint, "cryo node on %s, which coordinated, %s", lead, why)
	var found digest.Digest
	switch l := o.Status.Nodes[lead].Leads; {
	case l == nil || l.Index == nil || l.Abandoned:
	case o.restores():
		if l.Permit == stepRunning { // all members have reported that they run
			found = l.Index.Digest
		}
	default:
		if _, options, err := g.registryOf(l.Index.Ref); err == nil && l.Index.look(context.WithoutCancel(ctx), options) == indexThere {
			found = l.Index.Digest
		}
	}
	g.conclude(ctx, o.ended(found, gone))
}

// abandon ends what a process before this one has left of the group: its containers run on by themselves, or have ended as published.
func (g *podGroup) abandon(ctx context.Context, own nodeShare) {
	o, _, _ := g.now()
	unfinished, left := own.Leads != nil && !own.Leads.Closed, map[string]memberShare{}
	own.Members = maps.Clone(own.Members)
	for name, m := range own.Members {
		if !m.ended() {
			unfinished = true
			left[name] = m
			m.Failed = failure.New(errdefs.ErrAborted, o.leftHint(), "cryo node on %s has ended before its member %s was done", g.node, name)
			own.Members[name] = m
		}
	}
	if o.Status.over() && !unfinished {
		return
	}
	leave := g.pulse.enter(ctx)
	defer leave()
	defer g.writing(ctx)()
	own.Instance = g.instance
	if own.Leads != nil {
		leads := *own.Leads
		leads.Closed = true
		own.Leads = &leads
	}
	g.edit(func(s *nodeShare) { *s = own })
	g.flush()
	defer g.endLeft(ctx, left)
	if own.Leads != nil {
		g.findOut(ctx, g.node, "has ended before the group was done")
		g.settle(ctx, g.node)
		return
	}
	for lead, share := range o.Status.Nodes {
		if share.Leads != nil && slices.ContainsFunc(share.Leads.Members, func(p groupPlan) bool { return p.Node == g.node }) {
			g.settle(ctx, lead)
			return
		}
	}
}

// coordinate leads all members through the steps, and writes what has become of the group.
func (g *podGroup) coordinate(ctx context.Context, pods []groupPod) {
	leave := g.pulse.enter(ctx)
	defer leave()
	o, _, _ := g.now()
	plan, full, err := o.plan(pods)
	if err != nil {
		g.conclude(ctx, o.ended("", err))
		return
	}
	_, options, err := g.registryOf(full)
	if err != nil {
		g.conclude(ctx, o.ended("", err))
		return
	}
	run := &groupRun{app: g.quiet(), what: "checkpoint", state: newCoordination(checkpointSteps, len(plan))}
	run.publishes(full, options)
	if err = g.leadAll(ctx, run, groupLead{Members: plan}); errors.Is(err, errNotWanted) {
		return
	}
	var published digest.Digest
	if run.state.decided {
		published = digest.FromBytes(run.written)
	}
	if err == nil && published == "" {
		err = errors.New("it was called off")
	}
	g.conclude(ctx, o.ended(published, err))
}

// errNotWanted is the error of a group that is deleted, or that another node has given up, before it has begun.
var errNotWanted = errors.New("the group is not wanted any more")

// leadAll writes who the members are, and leads them through the steps of run. It returns when every member has finished or failed.
func (g *podGroup) leadAll(ctx context.Context, run *groupRun, lead groupLead) error {
	plan := lead.Members
	g.conclude(ctx, groupSummary{Phase: groupRunning, StartTime: time.Now().UTC().Format(time.RFC3339)})
	o, gone, _ := g.now()
	if gone || o.Status.over() {
		return errNotWanted
	}
	lead.Members = slices.Clone(plan)
	g.edit(func(s *nodeShare) { s.Leads = &lead })
	var places []groupPlace
	for _, p := range plan {
		places = append(places, groupPlace{name: p.called(), host: p.Node})
	}
	lines := &leadLines{podGroup: g, open: len(plan)}
	err := run.lead(ctx, places, o.holdTime(), func(of int) error {
		run.members[of].line = lines.line(plan[of])
		run.listen(of, func() error {
			return failure.New(errdefs.ErrUnavailable, "see whether cryo node runs there: kubectl -n cryo-system get pods -o wide", "%s is gone without a word: cryo node there does not take part, or is silent for %s", run.members[of], silentTime)
		})
		return nil
	}, func(*runningMember) *groupAsk { return &groupAsk{} })
	if ctx.Err() != nil && err != nil {
		err = fmt.Errorf("cryo node on %s, which coordinates, was ended: %w", g.node, err)
	}
	err = run.outcome(err)
	for _, m := range run.members {
		<-m.line.flushed
	}
	g.flush()
	return err
}
