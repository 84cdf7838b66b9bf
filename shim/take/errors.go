package take

import (
	"context"
	"errors"
	"fmt"

	"github.com/cryo-project/cryo/image/spec/failure"
	"github.com/cryo-project/cryo/shim/job"
)

// failed is the error of a checkpoint without a snapshot. The container is as it was, unless err says that it is lost.
func (t *taking) failed(ctx context.Context, err error) *job.Error {
	e := job.Failed(ctx, "checkpoint", t.Container, "try again; CRIU's log is criu-dump.log in the container's bundle, below /run/containerd/io.containerd.runtime.v2.task", err)
	if e.Running, e.Lost = !isLost(err), isLost(err); e.Lost {
		e.Advice = "restore it from an earlier snapshot: cryo ls"
	}
	return e
}

// kept is the error of what should have been done with a snapshot that is safe here; next says how it is done.
func (r *Result) kept(next string, err error) *job.Error {
	became := "was ended"
	if r.Running {
		became = "runs on"
	}
	return &job.Error{Container: r.asked.Container, Running: r.Running, Snapshot: r.Digest, Err: err,
		Advice: after(err, fmt.Sprintf("%s %s; the snapshot is safe as %s (%s); %s", r.asked.Container, became, r.asked.Ref, r.Digest, next))}
}

// after puts a hint after that of the cause.
func after(err error, hint string) string {
	if more := failure.Hint(err); more != "" {
		return more + "\n" + hint
	}
	return hint
}

func isLost(err error) bool { return errors.Is(err, failure.ErrLost) }
