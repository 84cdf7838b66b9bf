package shim

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"

	"github.com/cryo-project/cryo/shim/worker"
)

// whenReady returns how long a container's program may take to be ready, if the annotations say that its snapshot is taken then; else 0. A pod's sandbox has the annotations of its pod,
// and no program.
func whenReady(annotations map[string]string) (time.Duration, error) {
	when := annotations[worker.WhenAnnotation]
	if when == "" || annotations[kindAnnotation] == kindSandbox {
		return 0, nil
	}
	if when != worker.WhenReady {
		return 0, fmt.Errorf("annotation %s=%q is not %s: %w", worker.WhenAnnotation, when, worker.WhenReady, errdefs.ErrInvalidArgument)
	}
	if annotations[worker.CheckpointAnnotation] == "" {
		return 0, fmt.Errorf("annotation %s=%s needs %s, where the snapshot goes: %w", worker.WhenAnnotation, when, worker.CheckpointAnnotation, errdefs.ErrInvalidArgument)
	}
	text := annotations[worker.ReadyTimeoutAnnotation]
	if text == "" {
		return worker.ReadyTimeout, nil
	}
	timeout, err := time.ParseDuration(text)
	if err != nil || timeout <= 0 {
		return 0, fmt.Errorf("annotation %s=%q is no duration such as 5m: %w", worker.ReadyTimeoutAnnotation, text, errdefs.ErrInvalidArgument)
	}
	return timeout, nil
}

// takeWhenReady starts a checkpoint process that waits until the program of a container is ready, and then takes its snapshot and sends it where the container's annotation says.
// A container without a control directory has no program that could be ready: it may be another one of the pod that has the annotation.
func (s *service) takeWhenReady(ctx context.Context, c *container) {
	entry := log.G(ctx).WithField("id", c.request.ID)
	spec, err := c.bundle.spec()
	if err != nil {
		entry.WithError(err).Warn("take a snapshot when a program is ready")
		return
	}
	if control, err := worker.ControlOf(spec); control == nil {
		entry.WithError(err).Debug("no snapshot is taken of a container without a control directory")
		return
	}
	to := spec.Annotations[worker.CheckpointAnnotation]
	request, err := c.sendRequest(ctx, to, &options.CheckpointOptions{})
	if err == nil {
		request.Checkpoint.ReadyTimeout = c.bundle.whenReady.Seconds()
		_, err = s.takeAndSend(ctx, c, request)
	}
	if err != nil {
		entry.WithError(err).Warn("no snapshot was taken of a container whose program was to be ready")
	}
}
