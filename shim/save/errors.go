package save

import (
	"context"
	"errors"
	"fmt"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/shim/restore"
)

// failed is the error of a checkpoint without a snapshot. The container is as it was, unless err says that it is lost.
func failed(ctx context.Context, container string, err error) *restore.JobError {
	e := restore.JobFailed(ctx, "checkpoint", container, "try again; CRIU's log is criu-dump.log in the container's bundle, below /run/containerd/io.containerd.runtime.v2.task", err)
	if e.Running, e.Lost = !isLost(err), isLost(err); e.Lost {
		e.Advice = "restore it from an earlier snapshot: cryo ls"
	}
	return e
}

// kept is the error of what should have been done with a snapshot that is safe here; next says how it is done.
func (r *Result) kept(next string, err error) *restore.JobError {
	became := "was ended"
	if r.Running {
		became = "runs on"
	}
	e := &restore.JobError{Container: r.asked.Container, Running: r.Running, Err: err, Advice: r.asked.Container + " " + became}
	if !r.asked.Discard {
		e.Snapshot = r.Digest
		e.Advice += fmt.Sprintf("; the snapshot is safe as %s (%s); %s", r.asked.Ref, r.Digest, next)
	}
	e.Advice = after(err, e.Advice)
	return e
}

// after puts a hint after that of the cause.
func after(err error, hint string) string {
	if more := failure.Hint(err); more != "" {
		return more + "\n" + hint
	}
	return hint
}

func isLost(err error) bool { return errors.Is(err, failure.ErrLost) }
