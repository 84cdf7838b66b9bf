package shim

import (
	"context"
	"fmt"
	"path/filepath"

	taskAPI "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image/trust"
	"github.com/cryo-project/cryo/runtime/criu"
	"github.com/cryo-project/cryo/runtime/gpu"
	"github.com/cryo-project/cryo/runtime/guard"
	"github.com/cryo-project/cryo/shim/worker"
)

// Create makes a container, fresh or from the images of a snapshot, which [service.Start] then restores.
func (s *service) Create(ctx context.Context, r *taskAPI.CreateTaskRequest) (*taskAPI.CreateTaskResponse, error) {
	answer, err := s.create(ctx, r, false)
	return answer, reply(err)
}

// create is Create. A container that asks for a restore, and for a start where it cannot be restored, is created afresh if that turns out before it has a task. A restore that
// fails later is a task that could not be started. A cold container is not restored, whatever it asks for.
func (s *service) create(ctx context.Context, r *taskAPI.CreateTaskRequest, cold bool) (*taskAPI.CreateTaskResponse, error) {
	c, err := s.prepare(ctx, r, cold)
	if err == nil {
		var answer *taskAPI.CreateTaskResponse
		if answer, err = s.createPrepared(ctx, c, r); err == nil {
			return answer, nil
		}
	}
	if c != nil && c.annotated != nil && c.bundle.asked.start && ctx.Err() == nil {
		return s.afresh(ctx, c, err)
	}
	if c != nil && c.process != nil {
		err = c.process.Because(native(err))
	}
	s.drop(ctx, c)
	return nil, err
}

// createPrepared has the stock service create a container.
func (s *service) createPrepared(ctx context.Context, c *container, r *taskAPI.CreateTaskRequest) (*taskAPI.CreateTaskResponse, error) {
	s.mu.Lock()
	s.containers[r.ID] = c
	s.mu.Unlock()
	answer, err := s.TTRPCTaskService.Create(ctx, r)
	if err != nil {
		s.mu.Lock()
		delete(s.containers, r.ID)
		s.mu.Unlock()
		return nil, err
	}
	c.life.move(preparing, created)
	return answer, nil
}

// prepare checks the request, and changes it and the bundle to what the stock service shall see. A cold container is not restored, whatever it asks for.
func (s *service) prepare(ctx context.Context, r *taskAPI.CreateTaskRequest, cold bool) (_ *container, err error) {
	ns, err := namespaces.NamespaceRequired(ctx)
	if err != nil {
		return nil, err
	}
	c := &container{bundle: bundle{dir: r.Bundle}, request: r}
	// Written down before anything can fail, so that nothing is left behind whatever does.
	if sent, err := runcOptions(r.Options, ""); isDaemons(r.Checkpoint) && (err != nil || sent.CriuImagePath != r.Checkpoint) { // else it is the client's
		if err := c.bundle.own(r.Checkpoint); err != nil {
			return c, err
		}
	}
	b, err := openBundle(r.Bundle, s.config.Restore.Policy.AllowsImage)
	if err != nil {
		return c, err
	}
	c.bundle = b
	options, err := runcOptions(r.Options, b.cgroupsPath)
	if err != nil {
		return c, err
	}
	ordered, err := worker.RequestIn(options)
	if err != nil {
		return c, err
	}
	c.runtime, c.work = newRuntimeContainer(r.ID, b, ns, options), options.CriuWorkPath
	if err := c.runtime.Foreign(); err != nil {
		return c, fmt.Errorf("create %s: %w", r.ID, err)
	}
	switch {
	case ordered != nil:
		if err := c.bundle.obey(ordered, r.ID, ns); err != nil {
			return c, err
		}
		if err := s.prepareAnnotated(ctx, c, r, ordered, options); err != nil {
			return c, err
		}
	case cold || r.Checkpoint != "" || options.CriuImagePath != "":
	case b.asked.again:
		s.startedAgain(ctx, r.ID, b.asked)
	case b.asked.restores():
		if err := s.prepareAnnotated(ctx, c, r, b.wanted(r.ID, ns), options); err != nil {
			return c, err
		}
	}
	if r.Options, err = typeurl.MarshalAnyToProto(options); err != nil {
		return c, fmt.Errorf("pass on runtime options: %w", err)
	}
	if r.Checkpoint == "" {
		r.Checkpoint = options.CriuImagePath
	}
	c.restore, c.work = r.Checkpoint, options.CriuWorkPath
	if c.work == "" {
		c.work = filepath.Join(b.dir, "work") // as in the stock service
	}
	if c.restore == "" {
		c.gpus = b.gpus
		if b.asksNoRing {
			if err := b.changeSpec(refuseRing); err != nil {
				return c, err
			}
		}
		return c, s.giveLibrary(ctx, c, r)
	}
	if err := s.judge(c); err != nil {
		return c, err
	}
	if c.process == nil { // else that reviews
		box, err := openSandbox(c) // it takes some milliseconds to be ready
		if err != nil {
			return c, err
		}
		c.box.Store(box)
	}
	defer func() {
		if err != nil {
			_ = c.box.Swap(nil).Close()
		}
	}()
	program, err := s.giveCRIU()
	if err != nil {
		return c, err
	}
	criu.Cache(program)
	if c.process == nil {
		if err := reviewImages(ctx, c); err != nil {
			return c, err
		}
	}
	record, err := gpu.ReadRecord(c.restore)
	if err != nil {
		return c, err
	}
	err = b.changeSpec(func(spec *specs.Spec) error {
		if err := s.bringGPUs(c, spec, record); err != nil {
			return err
		}
		b.followLinks(spec)
		c.gpus = gpusOf(spec)
		c.gpus.record = record
		return c.giveLibraryAgain(spec)
	})
	if err != nil {
		return c, err
	}
	if err := giveStreams(r, r.Bundle); err != nil {
		return c, err
	}
	return c, criu.CheckImages(c.restore)
}

// openSandbox starts the process that reviews a container's images.
func openSandbox(c *container) (*trust.Sandbox, error) {
	program, err := guard.Program("")
	if err != nil {
		return nil, err
	}
	return trust.OpenSandbox(program, c.restore)
}

// reviewImages refuses images that no checkpoint writes, which would have CRIU leave the container. What the container may have its client has said
// by its specification; the cryo command has that compared, too.
func reviewImages(ctx context.Context, c *container) error {
	spec, err := c.bundle.spec()
	if err != nil {
		return err
	}
	return c.box.Load().Images(ctx, spec, trust.Policy{Allow: []trust.Grant{trust.All}})
}

// reviewFiles reviews what depends on the container's root file system, which is mounted when it is created.
func reviewFiles(ctx context.Context, c *container) error {
	box := c.box.Swap(nil)
	defer func() { _ = box.Close() }()
	spec, err := c.bundle.spec()
	if err != nil || spec.Root == nil {
		return err
	}
	if c.process != nil {
		return c.process.Files(worker.Files{Spec: spec, Rootfs: c.bundle.rootfs(spec)})
	}
	if box == nil { // it was begun before, and failed
		if box, err = openSandbox(c); err != nil {
			return err
		}
	}
	return box.Files(ctx, c.bundle.rootfs(spec), spec)
}

// forget drops what is known of a container, and what is held for it.
func (s *service) forget(ctx context.Context, id string) {
	s.mu.Lock()
	c := s.containers[id]
	delete(s.containers, id)
	s.mu.Unlock()
	s.drop(ctx, c)
}

func (s *service) drop(ctx context.Context, c *container) {
	if c == nil {
		return
	}
	_ = c.box.Swap(nil).Close()
	warn(ctx, "undo what a restore has changed", c.undo())
	warn(ctx, "remove the directory a container was restored from", removeOwned(c.bundle.dir))
}
