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
	if own, has := o.Status.Nodes[g.node]; has {
		g.abandon(ctx, own)
		return
	}
	if o.Status.over() {
		return
	}
	pods, err := g.selected(ctx, o)
	for said := false; err != nil; pods, err = g.selected(ctx, o) {
		if errdefs.IsInvalidArgument(err) {
			g.conclude(ctx, ended("", err))
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
		g.conclude(ctx, ended("", err))
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
				g.members(ctx, lead, *share.Leads, pods)
				return
			}
		}
		if claimed {
			unclaimed = nil
		}
		select {
		case <-changed:
		case <-unclaimed:
			g.conclude(ctx, ended("", failure.New(errdefs.ErrUnavailable, "see kubectl -n cryo-system get pods -o wide", "no cryo node answers on node %s, which has the first pod of the group", first)))
		case <-ctx.Done():
			return
		}
	}
}

// members has this node's members take part, and waits for the group's result.
func (g *podGroup) members(ctx context.Context, lead string, plan groupLead, pods []groupPod) {
	leave := g.pulse.enter(ctx)
	defer leave()
	o, _, _ := g.now()
	var all sync.WaitGroup
	for _, p := range plan.Members {
		i := slices.IndexFunc(pods, func(pod groupPod) bool { return pod.UID == p.UID && pod.Name == p.Name && pod.Spec.NodeName == g.node })
		if p.Node != g.node {
			continue
		}
		id, err := "", error(failure.New(errdefs.ErrNotFound, "create another CheckpointGroup", "the pod %s that the coordinator has found is not on node %s", p.Name, g.node))
		if i >= 0 {
			id, err = pods[i].container(o.Spec.Container)
		}
		g.edit(func(s *nodeShare) {
			if s.Members == nil {
				s.Members = map[string]memberShare{}
			}
			s.Members[p.Name] = memberShare{UID: p.UID, Container: id}
		})
		all.Go(func() {
			if err == nil {
				err = g.member(ctx, lead, p.Name, id)
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
		s.Members = maps.Clone(s.Members)
		m := s.Members[name]
		if !m.ended() {
			m.note(message)
		}
		s.Members[name] = m
	})
}

// registryOf returns how this host reaches the registry of a group, which its configuration must allow.
func (g *podGroup) registryOf(full string) (worker.Registry, registry.Options, error) {
	c, err := g.app.config()
	if err != nil {
		return worker.Registry{}, registry.Options{}, err
	}
	if !c.Checkpoint.Allows(full) {
		return worker.Registry{}, registry.Options{}, failure.New(errdefs.ErrPermissionDenied, "add its registry, or the beginning of its repository, to repositories under [checkpoint] in /etc/cryo/config.toml",
			"checkpoint-to: the configuration of node %s does not allow snapshots of a group to be sent to %s", g.node, full).By("checkpoint-to")
	}
	r := worker.Registry{PlainHTTP: c.Checkpoint.Plain(full), Credentials: c.Checkpoint.Credentials}
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
	})
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

// findOut writes the result of a group whose coordinator is gone: it is published if the registry has the index.
func (g *podGroup) findOut(ctx context.Context, lead, why string) {
	o, _, _ := g.now()
	gone := failure.New(errdefs.ErrUnavailable, "compare status.nodes with kubectl get pods: each container runs on that has not ended as published", "cryo node on %s, which coordinated, %s", lead, why)
	var found digest.Digest
	if l := o.Status.Nodes[lead].Leads; l != nil && l.Index != nil && !l.Abandoned {
		if _, options, err := g.registryOf(l.Index.Ref); err == nil && l.Index.look(context.WithoutCancel(ctx), options) == indexThere {
			found = l.Index.Digest
		}
	}
	g.conclude(ctx, ended(found, gone))
}

// abandon ends what a process before this one has left of the group: its containers run on by themselves, or have ended as published.
func (g *podGroup) abandon(ctx context.Context, own nodeShare) {
	o, _, _ := g.now()
	unfinished := own.Leads != nil && !own.Leads.Closed
	own.Members = maps.Clone(own.Members)
	for name, m := range own.Members {
		if !m.ended() {
			unfinished = true
			m.Failed = failure.New(errdefs.ErrAborted, "its container runs on, unless the group was published without leaveRunning", "cryo node on %s has ended before its member %s was done", g.node, name)
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
	if own.Leads != nil {
		g.findOut(ctx, g.node, "has ended before the group was done")
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
		g.conclude(ctx, ended("", err))
		return
	}
	_, options, err := g.registryOf(full)
	if err != nil {
		g.conclude(ctx, ended("", err))
		return
	}
	g.conclude(ctx, groupSummary{Phase: groupRunning, StartTime: time.Now().UTC().Format(time.RFC3339)})
	if o, gone, _ := g.now(); gone || o.Status.over() { // no longer wanted, or another node has given it up as unclaimed
		return
	}
	g.edit(func(s *nodeShare) { s.Leads = &groupLead{Members: slices.Clone(plan)} })
	run := &groupRun{app: g.quiet(), what: "checkpoint", state: newCoordination(checkpointSteps, len(plan))}
	run.publishes(full, options)
	var places []groupPlace
	for _, p := range plan {
		places = append(places, groupPlace{name: p.Name, host: p.Node})
	}
	lines := &leadLines{podGroup: g, open: len(plan)}
	err = run.lead(ctx, places, time.Duration(o.Spec.HoldTimeoutSeconds)*time.Second, func(of int) error {
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
	var published digest.Digest
	if run.state.decided {
		published = digest.FromBytes(run.written)
	}
	if err == nil && published == "" {
		err = errors.New("it was called off")
	}
	g.conclude(ctx, ended(published, err))
}
