package checkpoint

import (
	"context"
	"time"
)

// Devices moves what a container keeps on devices into the memory of its processes, where a dump finds it, and back. The
// container must run, not stand frozen, while Save and Load are at work.
type Devices interface {
	// Save moves it into memory; the processes wait at the next use of a device then. If it fails, all is as before, or the
	// error is a [*LossError].
	Save(ctx context.Context) (Saved, error)
	// Yield is called when the container stands frozen, before the dump: what Save has stopped by ptrace is let go, since CRIU traces the processes itself.
	Yield(ctx context.Context) error
	// Stop is called before a container that Save was successful for is thawed: its processes run no code of their own before Load has brought back what they had. A Load without
	// it is possible, but not safe.
	Stop(ctx context.Context) error
	// Record writes what a restore must know into dir, which the images go to next. From then on, what the container's memory
	// does not hold is on its way to the client, or waits for Drain.
	Record(dir string) error
	// Outgoing tells, after the dump, what goes to the client from the devices themselves.
	Outgoing(ctx context.Context) (Outgoing, error)
	// Drain waits until all of that is with the client. An error means that there will be no snapshot.
	Drain(ctx context.Context) error
	// Load moves it back and lets the processes go on. It ends whatever becomes of ctx. If it fails, what could not be moved is
	// in memory still, or the error is a [*LossError]. What the container gets a copy of goes to the client later; all else that
	// is not drained by then is given up.
	Load(ctx context.Context) error
	// Release gives up what is held for Load to be quick, and what is outgoing. The container has ended, runs, or stays frozen
	// as it is for long.
	Release()
}

// Saved says how a [Devices.Save] went. The zero value: there was nothing to save.
type Saved struct {
	Since time.Time     // when the first process was held up
	Lock  time.Duration // until all were locked
	Save  time.Duration // moving, afterwards
}

// Outgoing is what of the devices goes to the client beside the container's memory. The zero value: nothing.
type Outgoing struct {
	Any    bool // something does, or has
	Copied bool // the container gets a copy: it may have that before all is with the client
}

// since is when the container began to stand still, if it did so before now.
func (s Saved) since(now time.Time) time.Time {
	if s.Since.IsZero() {
		return now
	}
	return s.Since
}
