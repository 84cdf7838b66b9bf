package shim

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	taskAPI "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"

	"github.com/cryo-project/cryo/runtime/checkpoint"
	"github.com/cryo-project/cryo/shim/worker"
)

// sentFile is what a client gets for CRIU's images where the snapshot went to a registry: a [worker.Taken].
const sentFile = "cryo-snapshot.json"

// podAnnotation has the name of a container's pod. Source: containerd, internal/cri/annotations.
const podAnnotation = "io.kubernetes.cri.sandbox-name"

// sendTo is where the container's annotation has its snapshot sent, if a stock client asks for one; empty: nowhere. A client that has the container ended gets
// its images: it has nothing else.
func (c *container) sendTo(o *options.CheckpointOptions) (string, error) {
	if o.Exit {
		return "", nil
	}
	spec, err := c.bundle.spec()
	if err != nil {
		return "", err
	}
	return spec.Annotations[worker.CheckpointAnnotation], nil
}

// snapshot has the checkpoint process take a snapshot as a command has ordered. The process hears when the command does not want it any more, and goes on without containerd.
func (s *service) snapshot(ctx context.Context, c *container, order *worker.Request) error {
	id := c.request.ID
	ns, err := namespaces.NamespaceRequired(ctx)
	if err != nil {
		return err
	}
	if order.ID != id || order.Namespace != ns || order.Checkpoint == nil {
		return fmt.Errorf("the command has asked for a snapshot of %s in %s, not of %s in %s: %w", order.ID, order.Namespace, id, ns, errdefs.ErrInvalidArgument)
	}
	_, _, err = worker.Take(context.WithoutCancel(ctx), *order, s.holding(c))
	return err
}

// holding returns the function that dumps the container for a checkpoint process.
func (s *service) holding(c *container) worker.Dump {
	return func(ctx context.Context, h *worker.Holder) (checkpoint.Result, error) {
		return s.dump(ctx, c, dumpRequest{images: h.Images, work: h.Work, holder: h, options: &options.CheckpointOptions{
			OpenTcp: h.TCPEstablished, FileLocks: h.FileLocks, ExternalUnixSockets: h.ExternalUnixSockets,
		}})
	}
}

// send has the checkpoint process take a snapshot and send it, and leaves in images where it is. A client that has paused the container finds it paused again afterwards, and
// resumes it; it ran meanwhile, but for the dump. One that does not wait any more will not resume it, so it runs on.
func (s *service) send(ctx context.Context, c *container, to, images string, o *options.CheckpointOptions) error {
	id := c.request.ID
	if !c.sending.CompareAndSwap(false, true) {
		return checkpoint.Busy(id)
	}
	defer c.sending.Store(false)
	request, err := c.sendRequest(ctx, to, o)
	if err != nil {
		return err
	}
	undo, err := makeImages(images)
	if err != nil {
		return err
	}
	if s.is(ctx, id, task.Status_PAUSED) {
		if _, err := s.Resume(ctx, &taskAPI.ResumeRequest{ID: id}); err != nil {
			return err
		}
		defer s.pauseAgain(ctx, id)
	}
	taken, err := s.takeAndSend(ctx, c, request)
	if err != nil {
		undo()
		return err
	}
	data, err := json.Marshal(taken)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(images, sentFile), append(data, '\n'), 0o600); err != nil {
		return fmt.Errorf("checkpoint %s: the snapshot is %s@%s, and nothing of that can be written down: %w", id, taken.Reference, taken.Digest, err)
	}
	return nil
}

// takeAndSend starts a checkpoint process that takes a snapshot and sends it.
func (s *service) takeAndSend(ctx context.Context, c *container, request worker.Request) (*worker.Taken, error) {
	id, to := c.request.ID, request.Checkpoint.To
	taken, warnings, err := worker.Take(ctx, request, s.holding(c))
	for _, w := range warnings {
		log.G(ctx).WithField("id", id).WithField("to", to).Warn(w)
	}
	if err != nil {
		return nil, fmt.Errorf("checkpoint %s to %s: %w", id, to, err)
	}
	log.G(ctx).WithField("id", id).WithField("snapshot", taken.Reference).WithField("digest", taken.Digest).Info("a snapshot was taken and sent")
	return taken, nil
}

func (c *container) sendRequest(ctx context.Context, to string, o *options.CheckpointOptions) (r worker.Request, err error) {
	send := &worker.Checkpoint{
		To: to, Names: []string{c.request.ID}, Work: o.WorkPath,
		TCPEstablished: o.OpenTcp, FileLocks: o.FileLocks, ExternalUnixSockets: o.ExternalUnixSockets,
	}
	r = worker.Request{ID: c.request.ID, Address: os.Getenv(containerdAddress), Checkpoint: send}
	if r.Namespace, err = namespaces.NamespaceRequired(ctx); err != nil {
		return r, err
	}
	spec, err := c.bundle.spec()
	if err != nil {
		return r, err
	}
	if pod := spec.Annotations[podAnnotation]; pod != "" {
		send.Names = []string{pod, spec.Annotations[nameAnnotation]}
	}
	return r, nil
}

// pauseAgain pauses a container whose client had paused it, and waits for it.
func (s *service) pauseAgain(ctx context.Context, id string) {
	if ctx.Err() != nil {
		return
	}
	if _, err := s.Pause(ctx, &taskAPI.PauseRequest{ID: id}); err != nil {
		if s.is(ctx, id, task.Status_RUNNING) {
			log.G(ctx).WithField("id", id).WithError(err).Warn("pause a container again after its checkpoint: what its client copies now may change meanwhile")
		}
		return
	}
	if ctx.Err() != nil {
		if _, err := s.Resume(context.WithoutCancel(ctx), &taskAPI.ResumeRequest{ID: id}); err != nil {
			log.G(ctx).WithField("id", id).WithError(err).Warn("resume a container after its checkpoint")
		}
	}
}
