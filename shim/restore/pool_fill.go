package restore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/runtime/host"
	"github.com/cryo-project/cryo/runtime/runc"
	"github.com/cryo-project/cryo/shim/config"
	"github.com/cryo-project/cryo/shim/daemon"
	"github.com/cryo-project/cryo/shim/worker"
)

// Keep has a pool of count containers of the snapshot c.Ref, which is in the local store, and fills it. 0 removes the pool. c has no name and no choices.
func (c Command) Keep(ctx context.Context, count int) (*Pool, error) {
	name, err := store.Normalize(c.Ref)
	if err != nil {
		return nil, err
	}
	p := &Pool{dir: poolDir(c.Store.Root(), c.Address, c.Namespace, name), Reference: name, Count: count, Address: c.Address, Namespace: c.Namespace}
	if count == 0 {
		return p, p.End(ctx, c.Client)
	}
	desc, err := c.Store.Resolve(ctx, name)
	if err != nil {
		return nil, err
	}
	p.Digest = desc.Digest
	snapshot, err := c.poolable(ctx, desc)
	if err != nil {
		return nil, err
	}
	there, err := p.State()
	if err != nil {
		return nil, err
	}
	if err := c.checkMemory(int64(max(0, count-there.Ready)) * memoryOf(snapshot)); err != nil {
		return nil, err
	}
	if err := p.write(); err != nil {
		return nil, Full(c.Store.Root(), err)
	}
	return p, c.fill(ctx, p, true)
}

// Refill fills the pool of the snapshot c.Ref again, if there is one. It leaves that to another process which is about to do it.
func (c Command) Refill(ctx context.Context) error {
	p, err := findPool(c.Store.Root(), c.Address, c.Namespace, c.Ref)
	if err != nil || p == nil {
		return err
	}
	return c.fill(ctx, p, false)
}

// fill makes members until there are as many as are wanted, and removes those that are not. One process does it at a time, and one waits to look again: so a member that was taken while one fills is not missed.
func (c Command) fill(ctx context.Context, p *Pool, wait bool) error {
	next, err := p.lockAt(ctx, "next.lock", wait)
	if err != nil || next == nil {
		return err
	}
	filling, err := p.lockAt(ctx, "fill.lock", true)
	_ = next.Close()
	if err != nil {
		return err
	}
	defer filling.Close()
	for {
		if err := p.again(); err != nil {
			return err
		}
		desc, err := c.Store.Resolve(ctx, p.Reference)
		if errors.Is(err, store.ErrUnknownRef) {
			return p.end(ctx, c.Client) // the snapshot was removed
		}
		if err != nil {
			return err
		}
		if desc.Digest != p.Digest {
			p.Digest = desc.Digest
			if err := p.write(); err != nil {
				return err
			}
		}
		there, err := p.settle(ctx, c.Client)
		if err != nil {
			return err
		}
		if there >= p.Count {
			return nil
		}
		if err := c.add(ctx, p, desc); err != nil {
			return err
		}
	}
}

// poolable refuses a snapshot whose containers cannot stand in a pool, and returns the bytes of memory that each has.
func (c Command) poolable(ctx context.Context, desc ocispec.Descriptor) (*image.Snapshot, error) {
	snapshot, err := image.Open(ctx, c.Store, desc)
	if err != nil {
		return nil, err
	}
	if snapshot.Config.GPU != nil {
		return nil, failure.New(errdefs.ErrFailedPrecondition, "keep its device memory loaded instead: cryo prewarm --gpu", "prewarm %s --paused: its containers have GPUs, whose driver a container that stands still would hold",
			store.Familiar(c.Ref))
	}
	return snapshot, nil
}

// memoryOf returns how much memory a container of the snapshot has, bytes.
func memoryOf(s *image.Snapshot) int64 { return s.Config.Memory.Total - s.Config.Memory.Zero }

// checkMemory refuses to make members with so many bytes of memory.
func (c Command) checkMemory(need int64) error {
	budget := c.Config.Prewarm.Memory << 20
	if need == 0 {
		return nil
	}
	if budget == 0 {
		available, err := host.AvailableMemory("/")
		if err != nil || 2*need <= available {
			return err
		}
		return failure.New(errdefs.ErrResourceExhausted, "ask for fewer, or set memory under [prewarm] in the configuration",
			"prewarm: paused containers need %s of memory, and %s are available, of which a pool takes half at most", config.Size(need), config.Size(available))
	}
	all, err := Pools(c.Store.Root())
	if err != nil {
		return err
	}
	var used int64
	for _, p := range all {
		s, err := p.State()
		if err != nil {
			return err
		}
		used += s.Memory
	}
	if used+need <= budget {
		return nil
	}
	return failure.New(errdefs.ErrResourceExhausted, "ask for fewer, or raise memory under [prewarm] in the configuration",
		"prewarm: paused containers need %s of memory; those that there are have %s, of a budget of %s", config.Size(need), config.Size(used), config.Size(budget))
}

// idLength bounds what a member's id has of the name of the snapshot's container: containerd takes 76 characters.
const idLength = 60

// poolName returns a new name for a container of a snapshot that has a pool.
func poolName(s *image.Snapshot) string {
	of := s.Config.Container
	name := cmp.Or(of.Labels[daemon.NameLabel], of.ID)
	return fmt.Sprintf("%s-%08x", name[:min(len(name), idLength)], rand.Uint32())
}

// add makes one member.
func (c Command) add(ctx context.Context, p *Pool, desc ocispec.Descriptor) error {
	snapshot, err := c.poolable(ctx, desc)
	if err != nil {
		return err
	}
	need := memoryOf(snapshot)
	if err := c.checkMemory(need); err != nil {
		return err
	}
	s, err := p.newSeat(Member{ID: poolName(snapshot), Digest: desc.Digest, Memory: need, Named: snapshot.Config.Container.Labels[daemon.NameLabel] != "", Created: time.Now().UTC()})
	if err != nil {
		return err
	}
	c.Ref, c.Name, c.member = p.Reference, s.ID, true
	c.Choices = worker.Choices{Pull: PullNever, Wait: true, Progress: c.Choices.Progress, Debug: c.Choices.Debug}
	r, err := c.Run(ctx)
	if err == nil {
		s.PID, s.Image, s.Created = int(r.PID), r.Image, time.Now().UTC()
		if s.Started, err = runc.Started(s.PID); err == nil {
			err = s.write()
		}
	}
	if err != nil {
		return errors.Join(err, p.drop(ctx, c.Client, s)) // what is left: Run may have been interrupted
	}
	s.leave()
	return nil
}

// settle looks after members that no process makes or takes, and returns how many there are, with those. Of a member that a killed command has left nothing stays, unless it stands still as it should, or was
// handed out: then it is a container like others. So goes what is too much, or of another snapshot than the pool is of now.
func (p *Pool) settle(ctx context.Context, client *containerd.Client) (there int, err error) {
	entries, err := os.ReadDir(p.membersDir())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("look after a pool: %w", err)
	}
	var failed []error
	for _, e := range entries {
		s, err := p.sit(e.Name())
		if err != nil {
			return there, err
		}
		if s == nil { // another process has it; one that is taken does not count
			if m, err := readMember(filepath.Join(p.membersDir(), e.Name())); err == nil && !m.Taken && m.PID == 0 {
				there++
			}
			continue
		}
		status, err := statusOf(ctx, client, s.ID)
		switch {
		case err != nil:
			s.leave()
			return there, err
		case s.Taken && (status == containerd.Running || status == containerd.Stopped):
			err = p.adopt(ctx, client, s, "")
		case status == containerd.Paused && s.stands() && s.Digest == p.Digest && there < p.Count:
			there++
			if s.Taken {
				s.Taken, s.Env = false, nil
				err = s.write()
			}
			s.leave()
		default:
			err = p.drop(ctx, client, s)
		}
		if err != nil {
			failed = append(failed, err)
		}
	}
	return there, errors.Join(failed...)
}

// noTask is the status of a container that has no task.
const noTask containerd.ProcessStatus = "none"

// statusOf returns the status of a container's task; empty: there is no such container.
func statusOf(ctx context.Context, client *containerd.Client, id string) (containerd.ProcessStatus, error) {
	container, err := client.LoadContainer(ctx, id)
	if errdefs.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("look at container %s: %w", id, err)
	}
	task, err := container.Task(ctx, nil)
	var status containerd.Status
	if err == nil {
		status, err = task.Status(ctx)
	}
	switch {
	case errdefs.IsNotFound(err):
		return noTask, nil
	case err != nil:
		return "", fmt.Errorf("look at container %s: %w", id, err)
	}
	return status.Status, nil
}

// adopt makes a member that was handed out a container like others. name is nerdctl's; empty: as it is.
func (p *Pool) adopt(ctx context.Context, client *containerd.Client, s *seat, name string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	info, err := client.ContainerService().Get(ctx, s.ID)
	if err == nil {
		delete(info.Labels, daemon.PoolLabel)
		if name != "" {
			info.Labels[daemon.NameLabel] = name
		}
		fields := []string{"labels"}
		if len(s.Env) > 0 {
			fields = append(fields, "spec")
			info.Spec, err = withEnvironment(info.Spec, s.Env)
		}
		if err == nil {
			_, err = client.ContainerService().Update(ctx, containers.Container{ID: s.ID, Labels: info.Labels, Spec: info.Spec}, fields...)
		}
	}
	if err := IgnoreNotFound(err); err != nil {
		s.leave()
		return fmt.Errorf("take %s out of its pool: %w", s.ID, err)
	}
	return s.remove()
}

// withEnvironment returns a specification with variables.
func withEnvironment(old typeurl.Any, env []string) (typeurl.Any, error) {
	var spec specs.Spec
	if err := typeurl.UnmarshalTo(old, &spec); err != nil {
		return nil, err
	}
	worker.SetEnvironment(&spec, env)
	return typeurl.MarshalAny(&spec)
}

// drop removes a member, and its file.
func (p *Pool) drop(ctx context.Context, client *containerd.Client, s *seat) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	container, err := client.LoadContainer(ctx, s.ID)
	if err == nil {
		err = Remove(ctx, container)
	}
	if err := IgnoreNotFound(err); err != nil {
		s.leave()
		return fmt.Errorf("remove the member %s of a pool: %w", s.ID, err)
	}
	root := filepath.Dir(filepath.Dir(p.dir))
	return errors.Join(s.remove(), daemon.RemoveSockets(p.Address, p.Namespace, s.ID), os.RemoveAll(EtcDir(root, p.Address, p.Namespace, s.ID)))
}

// End removes a pool and its members. It waits for commands that take one.
func (p *Pool) End(ctx context.Context, client *containerd.Client) error {
	now, err := readPool(p.dir)
	if err != nil || now == nil {
		return err
	}
	now.Count = 0 // a process that fills it stops
	if err := now.write(); err != nil {
		return err
	}
	filling, err := p.lockAt(ctx, "fill.lock", true)
	if err != nil {
		return err
	}
	defer filling.Close()
	return now.end(ctx, client)
}

// end is End for a process that has the pool locked.
func (p *Pool) end(ctx context.Context, client *containerd.Client) error {
	p.Count = 0
	if err := p.write(); err != nil {
		return err
	}
	for deadline := time.Now().Add(undoTime); ; time.Sleep(pollTime) {
		if _, err := p.settle(ctx, client); err != nil {
			return err
		}
		left, err := p.Members() // other commands take them
		if err != nil {
			return err
		}
		if len(left) == 0 {
			break
		}
		if ctx.Err() != nil || time.Now().After(deadline) {
			return failure.New(failure.ErrBusy, "try again", "end the pool of %s: another command has taken %s and is still at it", store.Familiar(p.Reference), left[0].ID)
		}
	}
	if err := os.RemoveAll(p.dir); err != nil {
		return fmt.Errorf("remove a pool: %w", err)
	}
	return nil
}

// Connector reaches a containerd, as [daemon.Connect] does. The caller closes the client.
type Connector func(ctx context.Context, address, namespace string) (context.Context, *containerd.Client, error)

// EndPools ends the pools of a store whose snapshot it does not have any more by the pool's name, and those that a killed command was to end.
func EndPools(ctx context.Context, s *store.Store, connect Connector) error {
	return endPools(ctx, s, connect, func(p *Pool) bool {
		_, err := s.Resolve(ctx, p.Reference)
		return p.Count == 0 || errors.Is(err, store.ErrUnknownRef)
	})
}

// EndPoolsOf ends the pools of the snapshot with the normalised name ref.
func EndPoolsOf(ctx context.Context, s *store.Store, ref string, connect Connector) error {
	return endPools(ctx, s, connect, func(p *Pool) bool { return p.Reference == ref })
}

func endPools(ctx context.Context, s *store.Store, connect Connector, is func(*Pool) bool) error {
	all, err := Pools(s.Root())
	for _, p := range all {
		if !is(p) {
			continue
		}
		ctx, client, failed := connect(ctx, p.Address, p.Namespace)
		if failed == nil {
			failed = errors.Join(p.End(ctx, client), client.Close())
		}
		if failed != nil {
			err = errors.Join(err, fmt.Errorf("end the pool of %s: %w", store.Familiar(p.Reference), failed))
		}
	}
	return err
}
