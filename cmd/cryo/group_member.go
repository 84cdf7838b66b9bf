package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/registry"
	"github.com/cryo-project/cryo/shim/restore"
	"github.com/cryo-project/cryo/shim/save"
	"github.com/cryo-project/cryo/shim/worker"
)

// groupMemberCommand is the command that a coordinator runs on a member's host.
const groupMemberCommand = "group-member"

func newGroupMember(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     groupMemberCommand,
		Short:   "Take part in the checkpoint or restore of a group",
		Example: `  ssh node1 cryo group-member`,
		Long:    "group-member is what cryo checkpoint --group and cryo restore --group run on each host. It reads and writes lines of JSON; see cmd/cryo/GROUPS.md.",
		Hidden:  true,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			signal.Ignore(unix.SIGPIPE) // a coordinator that is gone is noticed by its silence
			line := openLine(os.Stdin, a.stdout, func() {})
			err := a.takePart(cmd.Context(), line)
			line.close()
			select {
			case <-line.flushed:
			case <-time.After(lastLineTime):
			}
			a.printed = true
			return err
		},
	}
}

// lastLineTime bounds how long a member waits until its last message is written.
const lastLineTime = 5 * time.Second

// groupMember is a member at work.
type groupMember struct {
	*app
	line   *groupLine
	ask    groupAsk
	life   memberLife
	client *containerd.Client

	events    chan memberEvent
	passes    map[worker.Step]chan struct{} // closed when the work may go on from a step
	together  *worker.Together
	cancel    context.CancelCauseFunc // of the work
	index     groupIndex              // that is about to be published
	registry  registry.Options
	result    json.RawMessage
	container string // that was restored
	err       error  // why the work has failed

	// A member that is the container of a pod is restored by inPod, which returns as the work of begin does, and is ended by endPod. nil: cryo restore makes and removes the container.
	inPod  func(context.Context) (result any, container string, err error)
	endPod func(ctx context.Context, container string) error
}

// memberEvent is an event of a member with what came with it.
type memberEvent struct {
	groupEvent
	at        worker.Reached
	addresses []string
	err       error
	result    json.RawMessage
	container string
}

var errCoordinatorGone = fmt.Errorf("the coordinator of the group has ended, or does not want it any more: %w", context.Canceled)

// takePart does what the coordinator asks for.
func (a *app) takePart(ctx context.Context, line *groupLine) error {
	return (&groupMember{app: a, line: line}).takePart(ctx)
}

func (m *groupMember) takePart(ctx context.Context) error {
	line := m.line
	first, ok := <-line.received
	switch {
	case !ok || first.Ask == nil:
		return misused("cryo", "%s is run by cryo checkpoint --group and cryo restore --group", groupMemberCommand)
	case first.Ask.Protocol != groupProtocol:
		err := failure.New(errdefs.ErrFailedPrecondition, "install the same release of cryo on all hosts of the group", "the coordinator speaks version %d of the group's protocol, and this host version %d", first.Ask.Protocol, groupProtocol)
		line.send(groupMessage{Failed: err})
		return err
	}
	m.ask, m.life, m.events, m.passes = *first.Ask, memberLife{restores: first.Ask.Restore != nil}, make(chan memberEvent, 16), map[worker.Step]chan struct{}{}
	for _, step := range append(append([]worker.Step{}, checkpointSteps...), restoreSteps...) {
		m.passes[step] = make(chan struct{})
	}
	m.namespace = cmp.Or(m.ask.Namespace, m.namespace)
	if err := m.begin(ctx); err != nil {
		line.send(groupMessage{Failed: failure.Of(err)})
		return err
	}
	defer m.client.Close()
	return m.attend(ctx)
}

// begin starts the work.
func (m *groupMember) begin(ctx context.Context) error {
	c, err := m.config()
	if err != nil {
		return err
	}
	s, err := m.store()
	if err != nil {
		return err
	}
	m.registry = restore.RegistryOptions(m.ask.Registry, c)
	var work func(context.Context) (any, string, error)
	ctx, client, err := m.connect(ctx)
	if err != nil {
		return err
	}
	m.client = client
	hooks := restore.Hooks{Warn: func(format string, args ...any) { m.line.send(groupMessage{Warning: fmt.Sprintf(format, args...)}) }, Step: m.reach}
	if m.ask.Progress {
		hooks.Progress = func(what string, done, total int64) {
			m.line.send(groupMessage{Progress: &worker.Progress{What: what, Done: done, Total: total}})
		}
	}
	switch {
	case m.ask.Checkpoint != nil:
		o := m.ask.Checkpoint.options()
		o.Config, o.Address, o.Hooks, o.Push = c, m.address, hooks, &m.registry
		environment, err := restore.Environment(s, m.configPath)
		if err == nil {
			err = o.Check()
		}
		if err != nil {
			return errors.Join(err, client.Close())
		}
		command := save.Command{Options: o, Store: s, Client: client, Environment: environment, Debug: m.debugLine()}
		work = func(ctx context.Context) (any, string, error) {
			r, err := command.Run(ctx)
			return r, "", err
		}
	case m.ask.Restore != nil && m.inPod != nil:
		work = m.inPod
	case m.ask.Restore != nil:
		command, err := m.restoreCommand(s)
		if err != nil {
			return errors.Join(err, client.Close())
		}
		r := m.ask.Restore
		command.Client, command.Hooks, command.Place = client, hooks, m.place
		command.Ref, command.Name, command.Namespace, command.Choices = r.Ref, r.Name, m.namespace, r.Choices
		command.Choices.Registry = m.ask.Registry
		work = func(ctx context.Context) (any, string, error) {
			r, err := command.Run(ctx)
			if err != nil {
				return nil, "", err
			}
			return r, r.Container, nil
		}
	default:
		return errors.Join(misused("cryo", "the coordinator asks for nothing"), client.Close())
	}
	working, cancel := context.WithCancelCause(ctx)
	m.cancel = cancel
	go func() {
		result, container, err := work(working)
		e := memberEvent{groupEvent: groupEvent{done: err == nil, failed: err != nil}, err: err, container: container}
		e.result, _ = json.Marshal(result) // of strings and numbers
		m.events <- e
	}()
	return nil
}

// options returns the choices of a checkpoint.
func (c *groupCheckpoint) options() save.Options {
	return save.Options{
		Container: c.Container, Ref: c.Ref, LeaveRunning: c.LeaveRunning, TCPEstablished: true, FileLocks: c.FileLocks, ExternalUnixSockets: c.ExternalUnixSockets,
		ReadyTimeout: c.ReadyTimeout, Parent: c.Parent, Compression: c.Compression, SegmentSize: c.SegmentSize, GPUTimeout: c.GPUTimeout, GPUEngine: c.GPUEngine, Force: c.Force, SnapshotOnly: true, Discard: c.Discard,
	}
}

// reach is the hook of the work that has reached a step: it waits until the work may go on.
func (m *groupMember) reach(ctx context.Context, at worker.Reached) (p worker.Permission, err error) {
	if err := m.await(ctx, memberEvent{groupEvent: groupEvent{reached: at.Step}, at: at, addresses: at.Addresses}); err != nil {
		return p, err
	}
	if at.Step == worker.Admitted && m.together != nil {
		for _, other := range m.together.Members {
			p.Others = append(p.Others, addressesIn(other.Was)...)
		}
	}
	if at.Step == worker.Placed {
		p.Together = m.together
	}
	return p, nil
}

func (m *groupMember) await(ctx context.Context, e memberEvent) error {
	m.events <- e
	select {
	case <-m.passes[e.reached]:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// place is the hook of a restore: it reports the addresses that the container will have, and returns those of all members.
func (m *groupMember) place(ctx context.Context, spec *specs.Spec) (*worker.Together, error) {
	addresses, err := worker.AddressesOf(spec)
	if err != nil {
		return nil, err
	}
	if err := m.await(ctx, memberEvent{groupEvent: groupEvent{reached: worker.Placed}, at: worker.Reached{Step: worker.Placed}, addresses: addresses}); err != nil {
		return nil, err
	}
	return m.together, nil
}

// attend takes events until the work is over.
func (m *groupMember) attend(ctx context.Context) error {
	from := m.line.received
	interrupted := ctx.Done()
	for !m.life.over {
		select {
		case e := <-m.events:
			m.take(ctx, e)
		case message, ok := <-from:
			switch {
			case !ok:
				from = nil
				m.take(ctx, memberEvent{groupEvent: groupEvent{closed: true}})
			case message.Permit != "":
				if message.Together != nil {
					m.together = message.Together
				}
				m.take(ctx, memberEvent{groupEvent: groupEvent{permitted: message.Permit}})
			case message.Publishing != nil:
				m.index = *message.Publishing
				m.take(ctx, memberEvent{groupEvent: groupEvent{publishing: true}})
			case message.Abandoned:
				m.take(ctx, memberEvent{groupEvent: groupEvent{abandoned: true}})
			}
		case <-interrupted:
			interrupted = nil
			m.cancel(context.Cause(ctx))
		}
	}
	return m.err
}

// take decides about an event, and does what is decided.
func (m *groupMember) take(ctx context.Context, e memberEvent) {
	if e.done || e.failed {
		m.result, m.container, m.err = e.result, e.container, e.err
	}
	for _, action := range m.life.on(e.groupEvent) {
		switch action.do {
		case tellReached:
			at := e.at
			at.Step, at.Addresses = action.step, nil
			m.line.send(groupMessage{Reached: &at, Addresses: e.addresses})
		case passStep:
			close(m.passes[action.step])
		case callOff:
			m.cancel(errCoordinatorGone)
		case lookUp:
			go func() { m.events <- memberEvent{groupEvent: groupEvent{looked: m.index.look(ctx, m.registry)}} }()
		case removeIt:
			m.err = errors.Join(errCoordinatorGone, m.remove(ctx))
		case tellEnd:
			m.line.send(m.end())
		}
	}
}

// end is the member's last message.
func (m *groupMember) end() groupMessage {
	if m.err == nil {
		return groupMessage{Done: m.result}
	}
	last := groupMessage{Failed: failure.Of(m.err)}
	if of := (*restore.JobError)(nil); errors.As(m.err, &of) {
		last.State = &worker.State{Running: of.Running, Lost: of.Lost, Snapshot: of.Snapshot}
	}
	return last
}

// Times of publishing. A coordinator that dies may have sent a request that the registry answers later.
const (
	publishTime = 10 * time.Second
	lookTime    = publishTime + 5*time.Second
)

// look asks the registry whether an index is published. That it is absent counts only when no coordinator can be publishing it any more.
func (i groupIndex) look(ctx context.Context, o registry.Options) lookedUp {
	for deadline := time.Now().Add(lookTime); ; time.Sleep(time.Second) {
		asking, cancel := context.WithTimeout(ctx, publishTime)
		d, err := registry.Resolve(asking, i.Ref, o)
		cancel()
		switch {
		case err == nil && d.Digest == i.Digest:
			return indexThere
		case time.Now().After(deadline), ctx.Err() != nil:
			return indexAbsent
		}
	}
}

// remove ends and removes the container that was restored. That of a pod is the kubelet's to remove.
func (m *groupMember) remove(ctx context.Context) error {
	if m.endPod != nil {
		return m.endPod(context.WithoutCancel(ctx), m.container)
	}
	ctx, client, err := m.connect(context.WithoutCancel(ctx))
	if err != nil {
		return err
	}
	defer client.Close()
	container, err := client.LoadContainer(ctx, m.container)
	if err == nil {
		err = restore.Remove(ctx, container)
	}
	if restore.IgnoreNotFound(err) != nil {
		return failure.New(errdefs.ErrUnknown, "remove it with ctr containers rm "+m.container, "remove the container %s of a group that is not restored: %w", m.container, err)
	}
	return nil
}
