package shim

import (
	"context"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/shim/worker"
)

// tellChanges writes down for the restored program what is new, while CRIU still stops it: in its control directory, if it has one, and as [worker.ChangesPath], if the container asks for
// its restore. name is what its user calls it.
func (c *container) tellChanges(init int, spec *specs.Spec, name string) error {
	control, err := worker.ControlOf(spec)
	if err != nil {
		return err
	}
	if control == nil && !c.asks() {
		return nil
	}
	changes := c.prepared.Changes
	if changes == nil {
		changes = worker.Unknown(spec)
	}
	addresses, err := worker.Addresses(init)
	if err != nil {
		return err
	}
	var gpus []worker.Change
	if c.pairs != nil {
		for _, p := range c.pairs() {
			gpus = append(gpus, worker.Change{Was: p.Old, Is: p.New})
		}
	}
	if c.prepared.Together != nil {
		changes.Members = c.prepared.Together.Members
	}
	changes.Complete(addresses, gpus)
	changes.Container = name
	if c.stands != nil {
		changes.Held = time.Since(c.stands.since).Seconds()
	}
	if c.asks() {
		if err := changes.Write(c.bundle.rootfs(spec), spec); err != nil {
			return err
		}
	}
	if control == nil {
		return nil
	}
	return control.Restored(init, changes)
}

// tellResumed writes the event that the program of a container, of which pid is the first process, goes on after a checkpoint.
func (c *container) tellResumed(ctx context.Context, pid int) {
	spec, err := c.bundle.spec()
	if err == nil {
		var control *worker.Control
		if control, err = worker.ControlOf(spec); control != nil {
			err = control.Resumed(pid)
		}
	}
	warn(ctx, "tell a program that it goes on after a checkpoint", err)
}
