package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"
)

// inject does the round's harm and mends what can be mended: what was stopped goes on, daemons are started again. ctx ends when the
// operation has ended; what has not begun by then is not begun. started gives the command's process.
func (r *round) inject(ctx context.Context, event func() bool, started <-chan int) error {
	var command int
	select {
	case command = <-started:
	case <-ctx.Done():
		return nil
	}
	if event != nil {
		if !until(ctx, event) {
			return nil
		}
		r.note("%s", r.choice.At.Event)
		pause(ctx, r.choice.At.Delay)
	} else {
		pause(ctx, time.Duration(r.choice.At.Share*float64(r.world.usual[r.op.name])))
	}
	var pid int
	if !until(ctx, func() bool { pid = r.target(command); return pid != 0 }) {
		return nil
	}
	// It is done in full, also where the operation has ended meanwhile.
	r.hit = true
	r.note("%s %s", r.choice.Fault, r.choice.Target)
	err := faultOf(r.choice.Fault).do(context.WithoutCancel(ctx), r, pid)
	r.note("%s is over", r.choice.Fault)
	return err
}

func faultOf(name string) fault {
	for _, f := range faults {
		if f.name == name {
			return f
		}
	}
	panic("no fault " + name)
}

// pause waits, no longer than ctx.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// target is the process to harm, or any where none is; 0 if there is none now.
func (r *round) target(command int) int {
	var but map[int]bool
	if commands[r.choice.Target] == "" && r.choice.Target != "registry" {
		return command // not a process
	}
	switch r.choice.Target {
	case "cryo", "ctr":
		return command
	case "registry":
		return r.world.registry.Pid()
	case "containerd":
	case "shim":
		if r.op.fresh {
			but = r.there
		}
	default:
		but = r.there
	}
	found := r.running(commands[r.choice.Target], but)
	if len(found) == 0 {
		return 0
	}
	slices.Sort(found)
	return found[r.choice.Pick%len(found)]
}

func stop(_ context.Context, r *round, pid int) error {
	if err := send(pid, syscall.SIGSTOP); err != nil {
		return err
	}
	time.Sleep(r.choice.Away)
	return send(pid, syscall.SIGCONT)
}

func kill(ctx context.Context, r *round, pid int) error { return end(ctx, r, pid, syscall.SIGKILL) }

func interrupt(_ context.Context, _ *round, pid int) error { return send(pid, syscall.SIGINT) }

func restart(ctx context.Context, r *round, pid int) error { return end(ctx, r, pid, syscall.SIGTERM) }

// end ends a process; a daemon is started again.
func end(ctx context.Context, r *round, pid int, sig syscall.Signal) error {
	switch r.choice.Target {
	case "containerd":
		if err := r.host.StopDaemon(sig); err != nil {
			return err
		}
		time.Sleep(r.choice.Away)
		return r.host.StartDaemon(ctx)
	case "registry":
		if err := r.world.registry.Stop(); err != nil {
			return err
		}
		time.Sleep(r.choice.Away)
		return r.world.registry.Start(ctx)
	}
	return send(pid, sig)
}

// send is no error where the process has ended by itself.
func send(pid int, sig syscall.Signal) error {
	if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("signal process %d: %w", pid, err)
	}
	return nil
}
