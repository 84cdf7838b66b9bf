package shim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"time"

	taskAPI "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/trust"
	"github.com/cryo-project/cryo/shim/worker"
)

// restoreWish is what a container's annotations ask for, or the name of its image.
type restoreWish struct {
	ref    string      // of the snapshot that it is to be restored from
	image  string      // the name of its image, which may be a snapshot's runnable one; empty: that is not looked at, or ref counts
	group  string      // the CheckpointGroup that restores it in step with others; empty: it is restored alone
	start  bool        // it is to be started where it cannot be restored
	again  bool        // ref does not count: the container has run before, in the same pod
	ran    bool        // the container has run before in the same pod, or its restore has failed
	signal unix.Signal // that its init process gets once it runs; 0: none
}

// restores reports whether the container is to be restored, or may be.
func (a restoreWish) restores() bool {
	return !a.again && (a.ref != "" || a.image != "" || a.group != "")
}

// name is what the container calls the snapshot.
func (a restoreWish) name() string {
	if a.ref == "" && a.group != "" {
		return "CheckpointGroup " + a.group
	}
	return cmp.Or(a.ref, a.image)
}

// What CRI says of a container: whether it is a pod's sandbox, to which the pod's annotations are passed as well, its name in the pod, and that of its image. Source:
// containerd, internal/cri/annotations. And what the kubelet says: how often the container was started before. Source: Kubernetes, pkg/kubelet/kuberuntime/labels.go.
const (
	kindAnnotation     = "io.kubernetes.cri.container-type"
	kindContainer      = "container"
	kindSandbox        = "sandbox"
	nameAnnotation     = "io.kubernetes.cri.container-name"
	imageAnnotation    = "io.kubernetes.cri.image-name"
	restartsAnnotation = "io.kubernetes.container.restartCount"
)

// askedBy reads what a container asks for. allows tells whether the configuration allows images of this name to be restored.
func askedBy(annotations map[string]string, allows func(image string) bool) (a restoreWish, err error) {
	kind := annotations[kindAnnotation]
	if kind == kindSandbox {
		return restoreWish{}, nil
	}
	if a.group = annotations[worker.GroupAnnotation]; a.group != "" {
		return askedByMember(a, annotations)
	}
	a.ref = worker.Named(annotations, annotations[nameAnnotation])
	if a.ref == "" && kind == kindContainer && allows(annotations[imageAnnotation]) {
		a.image, a.start = annotations[imageAnnotation], true
	}
	if a.ref == "" && a.image == "" {
		return restoreWish{}, nil
	}
	how, err := oneOf(annotations, worker.FallbackAnnotation, worker.FallbackFail, worker.FallbackStart)
	if err != nil {
		return a, err
	}
	if how != "" {
		a.start = how == worker.FallbackStart
	}
	if _, err = oneOf(annotations, worker.AsAnnotation, worker.AsClone, worker.AsMove); err != nil { // the restore process reads it
		return a, err
	}
	if how, err = oneOf(annotations, worker.RestartAnnotation, worker.RestartCold, worker.RestartRestore); err != nil {
		return a, err
	}
	if ranBefore(annotations) && how != worker.RestartRestore {
		if a.ref == "" {
			return restoreWish{}, nil // it is not known whether it was restored before
		}
		a.again = true
	}
	return a.signalled(annotations)
}

// askedByMember reads what a container asks for that is restored in step with others. The group decides whether it is restored, and whether it is started when it has ended.
func askedByMember(a restoreWish, annotations map[string]string) (restoreWish, error) {
	for _, name := range []string{worker.Annotation, worker.FallbackAnnotation, worker.RestartAnnotation} {
		if annotations[name] != "" {
			return a, fmt.Errorf("annotation %s is not for a pod with %s=%s: its group decides: %w", name, worker.GroupAnnotation, a.group, errdefs.ErrInvalidArgument)
		}
	}
	if _, err := oneOf(annotations, worker.AsAnnotation, worker.AsClone, worker.AsMove); err != nil {
		return a, err
	}
	a.ran = ranBefore(annotations)
	return a.signalled(annotations)
}

// ranBefore reports whether the pod has run the container before, or has failed to restore it.
func ranBefore(annotations map[string]string) bool {
	n := annotations[restartsAnnotation]
	return n != "" && n != "0"
}

// signalled reads the signal that a container's init process gets once it runs.
func (a restoreWish) signalled(annotations map[string]string) (restoreWish, error) {
	if name := annotations[worker.SignalAnnotation]; name != "" {
		if a.signal = unix.SignalNum(name); a.signal == 0 || a.signal == unix.SIGKILL || a.signal == unix.SIGSTOP {
			return a, fmt.Errorf("annotation %s=%q is no signal that a program can handle, such as SIGUSR1: %w", worker.SignalAnnotation, name, errdefs.ErrInvalidArgument)
		}
	}
	return a, nil
}

// oneOf reads an annotation that has one of two values; empty: it is not there.
func oneOf(annotations map[string]string, name, one, other string) (string, error) {
	value := annotations[name]
	if value != "" && value != one && value != other {
		return "", fmt.Errorf("annotation %s=%q is neither %s nor %s: %w", name, value, one, other, errdefs.ErrInvalidArgument)
	}
	return value, nil
}

// annotatedRestore is a restore that a container's annotation asks for, or its image, or the command that has made it.
type annotatedRestore struct {
	request *taskAPI.CreateTaskRequest // as containerd sent it
	since   time.Time                  // when that was
	order   *worker.Order              // the command's; nil: the container asks
}

// asks reports whether the container asks for its restore. Its client has written its specification, and not a command by the snapshot's.
func (c *container) asks() bool { return c.annotated != nil && c.annotated.order == nil }

// containerdAddress is the variable in which containerd tells a shim the address of its socket. Source: containerd, pkg/shim.
const containerdAddress = "GRPC_ADDRESS"

// wanted returns the request for the restore process of a container that asks for a restore.
func (b bundle) wanted(id, namespace string) *worker.Request {
	return &worker.Request{Ref: b.asked.ref, Image: b.asked.image, Group: b.asked.group, ID: id, Namespace: namespace, Address: os.Getenv(containerdAddress)}
}

// obey has the container restored as a command has decided, which has made it.
func (b *bundle) obey(request *worker.Request, id, namespace string) error {
	if request.ID != id || request.Namespace != namespace {
		return fmt.Errorf("the command has asked for the restore of %s in %s, not of %s in %s: %w", request.ID, request.Namespace, id, namespace, errdefs.ErrInvalidArgument)
	}
	b.asked = restoreWish{ref: request.Ref}
	if len(request.Order.Annotations) == 0 {
		return nil
	}
	return b.changeSpec(func(spec *specs.Spec) error {
		maps.Copy(spec.Annotations, request.Order.Annotations) // the map is not nil: it already has annotations of cryo
		return nil
	})
}

// prepareAnnotated has the snapshot prepared that is asked for, and changes the request and its options to those of a restore. Where the container's image is
// an ordinary one nothing is changed.
func (s *service) prepareAnnotated(ctx context.Context, c *container, r *taskAPI.CreateTaskRequest, want *worker.Request, o *options.Options) error {
	asked := c.bundle.asked
	c.annotated = &annotatedRestore{request: proto.Clone(r).(*taskAPI.CreateTaskRequest), since: time.Now(), order: want.Order}
	fresh := worker.NoteRootfs(r.Bundle, r.Rootfs)
	if want.Order != nil {
		fresh = nil // the command removes it as a whole
	}
	if fresh != nil && asked.image == "" {
		return fmt.Errorf("restore %s: %w", r.ID, fresh)
	}
	want.Bundle, want.Rootfs = r.Bundle, r.Rootfs
	process, prepared, err := worker.Start(ctx, *want)
	if err != nil {
		return fmt.Errorf("restore %s from %s: %w", r.ID, asked.name(), cmp.Or(fresh, err)) // it cannot have been prepared without
	}
	if process == nil {
		c.annotated = nil
		if asked.group != "" && asked.ran {
			s.startedAgain(ctx, r.ID, asked)
		}
		return worker.KeepRootfs(r.Bundle)
	}
	c.process, c.prepared = process, *prepared
	if asked.group != "" && prepared.Changes != nil {
		c.bundle.asked.ref = prepared.Changes.Snapshot
	}
	for _, w := range prepared.Warnings {
		log.G(ctx).WithField("id", r.ID).WithField("snapshot", asked.name()).Warn(w)
	}
	r.Checkpoint, o.CriuWorkPath = prepared.Images, prepared.Work
	return nil
}

// runs tells the restore process that the container runs. Its root file system is its own from now on.
func (c *container) runs(ctx context.Context) {
	if c.process == nil {
		return
	}
	if err := errors.Join(worker.KeepRootfs(c.bundle.dir), c.process.Running(c.loaded)); err != nil {
		log.G(ctx).WithError(err).WithField("id", c.request.ID).Warn("tell the restore process that the container runs") // if it has died, its memory does not come, and that is told
	}
	go c.process.Let()
}

// restoredTopic is that of the event by which containerd's clients hear that a container was restored that has asked for it. The event has the container's id, the
// snapshot's name and digest, and how many seconds it took from Create until the container ran.
const restoredTopic = "/cryo/restore/restored"

// tellRestored says that a container was restored: by a signal to itself if it wants one, in containerd's log, and to containerd's clients.
func (s *service) tellRestored(ctx context.Context, c *container) {
	if c.annotated == nil {
		return
	}
	id, took := c.annotated.request.ID, time.Since(c.annotated.since).Seconds()
	entry := log.G(ctx).WithField("id", id).WithField("snapshot", c.bundle.asked.name()).WithField("digest", c.prepared.Digest)
	if signal := c.bundle.asked.signal; signal != 0 {
		if _, err := s.TTRPCTaskService.Kill(ctx, &taskAPI.KillRequest{ID: id, Signal: uint32(signal)}); err != nil {
			entry.WithError(err).Warn("tell a container by a signal that it was restored")
		}
	}
	entry.WithField("seconds", took).Info("a container was restored")
	s.publish(ctx, restoredTopic, map[string]any{"container_id": id, "snapshot": c.bundle.asked.name(), "digest": c.prepared.Digest.String(), "seconds": took})
}

// undo leaves nothing of a restore that has not come about. The root file system must not be mounted. Of one that has, it ends the pull.
func (c *container) undo() error {
	c.process.End()
	if c.annotated == nil {
		return nil
	}
	return worker.UndoRootfs(c.bundle.dir)
}

// afresh undoes what has been prepared for the restore of a container, of which the stock service knows nothing, and creates it as its client wrote it.
func (s *service) afresh(ctx context.Context, c *container, reason error) (*taskAPI.CreateTaskResponse, error) {
	id := c.annotated.request.ID
	log.G(ctx).WithError(reason).WithField("id", id).WithField("snapshot", c.bundle.asked.name()).Warn("a container is started afresh since it cannot be restored")
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
	s.publishFallback(ctx, id, c.bundle.asked, native(reason))
	return s.create(ctx, c.annotated.request, true)
}

// fallbackTopic is that of the event by which containerd's clients hear that a container was started instead of restored. The event has the
// container's id, the snapshot's name, the reason, and its class ([failure.Class]).
const fallbackTopic = "/cryo/restore/fallback"

func (s *service) publishFallback(ctx context.Context, id string, a restoreWish, reason error) {
	// A snapshot's names may be no UTF-8, which no event can hold.
	s.publish(ctx, fallbackTopic, map[string]any{"container_id": id, "snapshot": a.name(), "reason": trust.Lines(reason.Error()), "class": failure.Class(reason)})
}

// startedAgain says that a container is started since it has run before.
func (s *service) startedAgain(ctx context.Context, id string, a restoreWish) {
	reason := failure.New(errdefs.ErrFailedPrecondition, "", "restart: the pod has run this container before, or has failed to restore it (%s=%s restores it again)", worker.RestartAnnotation, worker.RestartRestore).By("restart")
	log.G(ctx).WithField("id", id).WithField("snapshot", a.name()).Info("a container is started, and not restored: " + reason.Message)
	s.publishFallback(ctx, id, a, reason)
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
