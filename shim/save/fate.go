package save

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/runtime/checkpoint"
	"github.com/cryo-project/cryo/runtime/criu"
	"github.com/cryo-project/cryo/runtime/runc"
	"github.com/cryo-project/cryo/shim/restore"
	"github.com/cryo-project/cryo/shim/worker"
)

// fate is what has become of a container. It is looked at, and not concluded from what another process has answered.
type fate int

const (
	runs     fate = iota // its first process is alive and not frozen, and so is its shim
	ended                // its first process is gone
	frozen               // its first process is frozen, and its shim is alive
	orphaned             // its first process is alive, and its shim has died: containerd will kill the process
)

func (f fate) String() string {
	switch f {
	case runs:
		return "the container runs on"
	case ended:
		return "the container is lost: its process is gone"
	case frozen:
		return "the container is lost: it stands still, and its shim does not thaw it"
	}
	return "the container is lost: its shim has died, and containerd will end it"
}

// firstProcess is a container's first process, and none that gets its number later.
type firstProcess struct {
	pid     int
	started uint64 // see runc.Started
	shim    int    // its parent
	paused  bool   // by its client, and it stays so
}

func identify(pid uint32, paused bool) (p firstProcess, err error) {
	p = firstProcess{pid: int(pid), paused: paused}
	if p.started, err = runc.Started(p.pid); err == nil {
		p.shim, err = runc.Parent(p.pid)
	}
	return p, err
}

// beside lists the processes that exec has started in the container. CRIU saves only the first process and its descendants. A process of exec is a child of the
// shim, as the first process is, and shares the mount namespace of that.
func (p firstProcess) beside() (found []string) {
	mounts, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", p.pid))
	if err != nil {
		return nil
	}
	for _, child := range criu.ChildProcesses(p.shim) {
		theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", child))
		if err != nil || theirs != mounts || child == p.pid {
			continue
		}
		name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", child)) // empty if it ends just now
		found = append(found, fmt.Sprintf("%d (%s)", child, strings.TrimSpace(string(name))))
	}
	return found
}

// orphanTime is how long containerd may take to end a container whose shim has died.
const orphanTime = 15 * time.Second

// fate waits at most for patience until the container runs or has ended: its shim may still be undoing something.
func (p firstProcess) fate(patience time.Duration) fate {
	deadline, orphan := time.Now().Add(patience), time.Now().Add(orphanTime)
	for ; ; time.Sleep(20 * time.Millisecond) {
		now := p.look()
		if now == runs || now == ended || time.Now().After(deadline) || now == orphaned && time.Now().After(orphan) {
			return now
		}
	}
}

func (p firstProcess) look() fate {
	started, err := runc.Started(p.pid)
	if err != nil || started != p.started || runc.Ended(p.pid) {
		return ended
	}
	parent, err := runc.Parent(p.pid)
	if err != nil || parent != p.shim || runc.Ending(p.shim) {
		return orphaned
	}
	if stands, err := runc.Frozen(p.pid); err == nil && stands && !p.paused {
		return frozen
	}
	return runs
}

// gone reports whether the first process has ended, or its shim has died, after which containerd kills the process.
func (p firstProcess) gone() bool {
	became := p.look()
	return became == ended || became == orphaned
}

// addresses returns those of the container's network. If the container ends meanwhile, it is not running.
func (p firstProcess) addresses(container string) ([]string, error) {
	all, err := worker.Addresses(p.pid)
	if err != nil && p.gone() {
		return nil, checkpoint.NotRunning(container, "stopped")
	}
	return all, err
}

// lost returns err, of a checkpoint that has failed, as an [restore.JobError] if the container does not run on. It waits for what the shim undoes. Where the shim has begun
// nothing, since another checkpoint is under way or since the container had ended before, what becomes of the container is not this checkpoint's doing.
func (s *candidate) lost(err error) error {
	refused := s.told != nil && errors.Is(err, s.told) && errdefs.IsFailedPrecondition(err)
	if isLost(err) || refused || errors.Is(err, failure.ErrBusy) {
		return err
	}
	became := s.process.look()
	if s.asked {
		became = s.process.fate(s.patience())
	} else if became != ended {
		return err // it is as it was, which may be as another checkpoint has it
	}
	if became == runs {
		return err
	}
	return s.is(became, err)
}

// is returns err as that of a container that is lost.
func (s *candidate) is(became fate, err error) error {
	return &restore.JobError{Container: s.name, Lost: true, Err: fmt.Errorf("checkpoint %s: %s: %w", s.name, became, err)}
}
