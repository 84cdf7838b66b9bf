package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cryo-project/cryo/runtime/criu"
	"github.com/cryo-project/cryo/runtime/runc"
)

// undoTime bounds what is done to undo, seconds.
const undoTime = 30 * time.Second

// Container is what a checkpoint drives.
type Container interface {
	Pause(ctx context.Context) error
	Thaw(ctx context.Context) error
	Kill(ctx context.Context) error
	// Silence makes connections end without a word to their peers when the frozen container is killed.
	Silence(ctx context.Context) error
	Checkpoint(ctx context.Context, d runc.Dump) error
}

var _ Container = runc.Container{}

// Holder keeps a dumped container frozen for as long as it needs. [*Conversation] is the one there is.
type Holder interface {
	// Dumped tells that the container is dumped and frozen, and returns what shall become of it. An error means Resume.
	Dumped(ctx context.Context, d Dumped) (Decision, error)
}

// Request says what is wanted.
type Request struct {
	ID   string
	Dump runc.Dump
	// Frozen tells that the client has paused the container already; it is left paused then.
	Frozen bool
	// Alive tells whether the container's first process still exists.
	Alive func() bool
	// Hold, unless nil, keeps the container frozen after the dump; Dump.Exit is then its decision.
	Hold Holder
}

// Result says how it went.
type Result struct {
	Freeze time.Duration // the container stood still
	Dump   time.Duration // of which runc and CRIU
	Killed bool
}

// Run takes the checkpoint. Whatever happens, the container afterwards is as before, or ended because that was wanted,
// or the error is a [*LostError].
func Run(ctx context.Context, c Container, r Request) (Result, error) {
	result, err := run(ctx, c, r)
	if err == nil {
		return result, nil
	}
	if !r.Alive() {
		return result, &LostError{ID: r.ID, Err: err}
	}
	return result, &FailedError{ID: r.ID, Err: err}
}

func run(ctx context.Context, c Container, r Request) (result Result, err error) {
	dump := r.Dump
	if r.Hold != nil {
		dump.Exit = false
	}
	if !r.Frozen {
		// Also after a plain dump: where CRIU was ended, the cgroup it had frozen stays so.
		defer func() {
			if err != nil {
				err = errors.Join(err, undo(ctx, c.Thaw))
			}
		}()
	}
	start := time.Now()
	if r.Hold != nil && !r.Frozen {
		if err := c.Pause(ctx); err != nil {
			return result, err
		}
	}
	if err := c.Checkpoint(ctx, dump); err != nil {
		return result, err
	}
	result.Dump = time.Since(start)
	if err := criu.CheckImages(dump.Images); err != nil {
		return result, err
	}
	if !dump.Exit {
		if err := criu.CheckLinks(dump.Images); err != nil {
			return result, err
		}
	}
	record := criu.Record{TCPEstablished: dump.TCPEstablished, FileLocks: dump.FileLocks, ExternalSockets: dump.ExternalSockets}
	if err := criu.WriteRecord(dump.Images, record); err != nil {
		return result, err
	}
	if r.Hold != nil {
		result.Killed, err = hold(ctx, c, r, start, result.Dump)
		if err != nil {
			return result, err
		}
	}
	result.Freeze = time.Since(start)
	return result, nil
}

// hold waits for the holder's decision and carries it out.
func hold(ctx context.Context, c Container, r Request, start time.Time, dump time.Duration) (killed bool, err error) {
	decision, err := r.Hold.Dumped(ctx, Dumped{Frozen: start, DumpSeconds: dump.Seconds()})
	if err != nil {
		return false, err
	}
	switch decision {
	case Kill:
		if r.Dump.TCPEstablished {
			if err := c.Silence(ctx); err != nil {
				return false, err
			}
		}
		return true, undo(ctx, c.Kill)
	case Resume:
		if r.Frozen {
			return false, nil
		}
		return false, undo(ctx, c.Thaw)
	}
	return false, fmt.Errorf("decision %q is neither %q nor %q", decision, Resume, Kill)
}

// undo runs f although ctx may be cancelled.
func undo(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	return f(ctx)
}
