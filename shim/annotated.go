package shim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	taskAPI "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/cryo-project/cryo/shim/restorer"
)

// asked is what a container's annotations ask for.
type asked struct {
	ref   string // of the snapshot that it is to be restored from; empty: it is to be started
	start bool   // it is to be started where it cannot be restored
}

// kindAnnotation says whether CRI's container is a pod's sandbox, to which the pod's annotations are passed as well. Source: containerd, internal/cri/annotations.
const (
	kindAnnotation = "io.kubernetes.cri.container-type"
	kindSandbox    = "sandbox"
)

func askedBy(annotations map[string]string) (a asked, err error) {
	a.ref = annotations[restorer.Annotation]
	if a.ref == "" || annotations[kindAnnotation] == kindSandbox {
		return asked{}, nil
	}
	switch how := annotations[restorer.FallbackAnnotation]; how {
	case "", restorer.FallbackFail:
	case restorer.FallbackStart:
		a.start = true
	default:
		return a, fmt.Errorf("annotation %s=%q is neither %s nor %s: %w", restorer.FallbackAnnotation, how, restorer.FallbackFail, restorer.FallbackStart, errdefs.ErrInvalidArgument)
	}
	return a, nil
}

// annotated is a restore that a container's annotation asks for.
type annotated struct {
	request *taskAPI.CreateTaskRequest // as containerd sent it
}

// containerdAddress is the variable in which containerd tells a shim the address of its socket. Source: containerd, pkg/shim.
const containerdAddress = "GRPC_ADDRESS"

// prepareAnnotated has the snapshot prepared that the container's annotation names, and changes the request and its options to those of a restore.
func (s *service) prepareAnnotated(ctx context.Context, c *container, r *taskAPI.CreateTaskRequest, namespace string, o *options.Options) error {
	ref := c.bundle.asked.ref
	c.annotated = &annotated{request: proto.Clone(r).(*taskAPI.CreateTaskRequest)}
	if err := restorer.NoteRootfs(r.Bundle, r.Rootfs); err != nil {
		return fmt.Errorf("restore %s: %w", r.ID, err)
	}
	process, prepared, err := restorer.Start(ctx, restorer.Request{
		Ref: ref, ID: r.ID, Namespace: namespace, Address: os.Getenv(containerdAddress), Bundle: r.Bundle, Rootfs: r.Rootfs,
	})
	if err != nil {
		return fmt.Errorf("restore %s from %s: %w", r.ID, ref, err)
	}
	c.process, c.prepared = process, *prepared
	for _, w := range prepared.Warnings {
		log.G(ctx).WithField("id", r.ID).WithField("snapshot", ref).Warn(w)
	}
	r.Checkpoint, o.CriuWorkPath = prepared.Images, prepared.Work
	return nil
}

// join reaches the restore process of a command that has made the container, if there is one: the working directory of CRIU is its.
func (c *container) join(ctx context.Context, id, namespace string) error {
	process, prepared, err := restorer.Join(ctx, c.work, restorer.Application{ID: id, Namespace: namespace})
	if err != nil {
		return fmt.Errorf("restore %s: %w", id, err)
	}
	if process == nil {
		return nil
	}
	if prepared.Images != c.restore || prepared.Work != c.work {
		process.End()
		return fmt.Errorf("restore %s: the restore process has prepared %s, not %s: %w", id, prepared.Images, c.restore, errdefs.ErrInvalidArgument)
	}
	c.process, c.prepared = process, *prepared
	return nil
}

// runs tells the restore process that the container runs. Its root file system is its own from now on.
func (c *container) runs(ctx context.Context) {
	if c.process == nil {
		return
	}
	var kept error
	if c.annotated != nil {
		kept = restorer.KeepRootfs(c.bundle.dir)
	}
	if err := errors.Join(kept, c.process.Running(c.loaded)); err != nil {
		log.G(ctx).WithError(err).WithField("id", c.request.ID).Warn("tell the restore process that the container runs") // if it has died, its memory does not come, and that is told
	}
	go c.process.Let()
}

// undo leaves nothing of a restore that has not come about. The root file system must not be mounted. Of one that has, it ends the pull.
func (c *container) undo() error {
	c.process.End()
	if c.annotated == nil {
		return nil
	}
	return restorer.UndoRootfs(c.bundle.dir)
}

// afresh undoes the restore of a container, of which the stock service knows nothing any more, and creates it as its client wrote it.
func (s *service) afresh(ctx context.Context, c *container, reason error) (*taskAPI.CreateTaskResponse, error) {
	id := c.annotated.request.ID
	log.G(ctx).WithError(reason).WithField("id", id).WithField("snapshot", c.bundle.asked.ref).Warn("a container is started afresh since it cannot be restored")
	spec := filepath.Join(c.bundle.dir, specFile)
	if err := c.undo(); err != nil {
		return nil, err
	}
	if err := os.WriteFile(spec, c.bundle.written, 0o666); err != nil {
		return nil, fmt.Errorf("write the bundle's %s: %w", specFile, err)
	}
	if err := takeStreams(c.bundle.dir); err != nil {
		return nil, err
	}
	s.publishFallback(ctx, c, reason)
	return s.create(ctx, c.annotated.request, true)
}

// fallbackTopic is that of the event by which containerd's clients hear that a container was started instead of restored. The event has the
// container's id, the snapshot's name and the reason.
const fallbackTopic = "/cryo/restore/fallback"

func (s *service) publishFallback(ctx context.Context, c *container, reason error) {
	s.publish(ctx, fallbackTopic, map[string]any{"container_id": c.annotated.request.ID, "snapshot": c.bundle.asked.ref, "reason": reason.Error()})
}

// publish publishes an event of ours.
func (s *service) publish(ctx context.Context, topic string, fields map[string]any) {
	event, err := structpb.NewStruct(fields)
	if err == nil {
		err = s.deletions.Publish(ctx, topic, event)
	}
	if err != nil {
		log.G(ctx).WithError(err).WithField("topic", topic).Warn("publish an event")
	}
}

// startAfresh starts a container that could not be restored, if it asks for that: it has not run, and nobody wants it to end.
func (s *service) startAfresh(ctx context.Context, c *container, r *taskAPI.StartRequest, reason error) (_ *taskAPI.StartResponse, err error) {
	if c.annotated == nil {
		return nil, reason
	}
	c.process.End()
	if !c.bundle.asked.start || c.ran.Load() || c.brokenOff.Load() {
		return nil, reason // the root file system is mounted until the task is deleted
	}
	// Clients know of one task only, which is created and not deleted.
	s.deletions.mute(r.ID)
	defer s.deletions.unmute(r.ID, &err)
	if _, err := s.TTRPCTaskService.Delete(ctx, &taskAPI.DeleteRequest{ID: r.ID}); err != nil {
		return nil, errors.Join(reason, err)
	}
	if _, err := s.afresh(ctx, c, reason); err != nil {
		return nil, errors.Join(reason, err)
	}
	return s.TTRPCTaskService.Start(ctx, r)
}
