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
	return r.harm(context.WithoutCancel(ctx), pid)
}

// pause waits, no longer than ctx.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// target is the process to harm; 0 if there is none now.
func (r *round) target(command int) int {
	var but map[int]bool
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

// harm is carried out in full, also where the operation has ended meanwhile.
func (r *round) harm(ctx context.Context, pid int) error {
	w, away := r.world, r.choice.Away
	r.hit, r.hitAt = true, time.Now()
	r.note("%s %s, process %d", r.choice.Fault, r.choice.Target, pid)
	switch r.choice.Fault {
	case "stop":
		if err := send(pid, syscall.SIGSTOP); err != nil {
			return err
		}
		time.Sleep(away)
		r.note("continue")
		return send(pid, syscall.SIGCONT)
	case "kill", "restart":
		sig := syscall.SIGKILL
		if r.choice.Fault == "restart" {
			sig = syscall.SIGTERM
		}
		switch r.choice.Target {
		case "containerd":
			if err := r.host.StopDaemon(sig); err != nil {
				return err
			}
			time.Sleep(away)
			err := r.host.StartDaemon(ctx)
			r.note("containerd is back")
			return err
		case "registry":
			if err := w.registry.Stop(); err != nil {
				return err
			}
			time.Sleep(away)
			err := w.registry.Start(ctx)
			r.note("the registry is back")
			return err
		}
		return send(pid, sig)
	}
	return fmt.Errorf("no fault %s", r.choice.Fault)
}

// send is no error where the process has ended by itself.
func send(pid int, sig syscall.Signal) error {
	if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("signal process %d: %w", pid, err)
	}
	return nil
}
