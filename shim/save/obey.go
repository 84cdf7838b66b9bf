package save

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/registry"
	"github.com/cryo-project/cryo/image/signature"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/shim/restore"
	"github.com/cryo-project/cryo/shim/worker"
)

// errCalledOff is why a checkpoint ends that the command does not want any more.
var errCalledOff = fmt.Errorf("the command that asked for the checkpoint has ended: %w", context.Canceled)

// obey takes the snapshot that a command has ordered, and reports to the command.
func (v *serving) obey(ctx context.Context) (*worker.Taken, []string, error) {
	order := v.request.Checkpoint.Order
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	report, err := worker.OpenReport(order.Report)
	if err != nil {
		return nil, nil, errCalledOff
	}
	defer func() {
		report.Close()
		_ = store.SweepWork(order.Report) // of a command that was killed
	}()
	go func() {
		_ = report.Left() // a command names no reason
		cancel(errCalledOff)
	}()
	if order.Debug {
		restore.LogTo(report)
	}
	o, err := v.ordered(ctx, report)
	var r *Result
	if err == nil {
		r, err = v.take(ctx, o, func() error { return nil })
	}
	report.Tell(lastWord(r, err))
	if err != nil {
		return nil, nil, err
	}
	return &worker.Taken{Reference: r.Reference, Digest: r.Digest, Size: r.Size}, nil, nil
}

// lastWord is what the command hears last.
func lastWord(r *Result, err error) worker.News {
	var n worker.News
	if r != nil {
		n.Result, _ = json.Marshal(r) // of strings and numbers
	}
	if err == nil {
		return n
	}
	n.Failed = failure.Of(err)
	if of := (*restore.JobError)(nil); errors.As(err, &of) {
		n.State = &worker.State{Running: of.Running, Lost: of.Lost, Snapshot: of.Snapshot}
	}
	return n
}

// ordered returns the options that a command has ordered.
func (v *serving) ordered(ctx context.Context, report *worker.Report) (Options, error) {
	r, order := v.request.Checkpoint, v.request.Checkpoint.Order
	o := Options{
		Config: v.config, Address: v.request.Address, Container: order.Container, Ref: order.Ref, LeaveRunning: order.LeaveRunning, Remove: order.Remove,
		TCPEstablished: r.TCPEstablished, FileLocks: r.FileLocks, ExternalUnixSockets: r.ExternalUnixSockets, Parent: order.Parent, Compression: order.Compression,
		ReadyTimeout: time.Duration(order.ReadyTimeout * float64(time.Second)), SegmentSize: order.SegmentSize, GPUTimeout: time.Duration(order.GPUTimeout * float64(time.Second)), GPUEngine: order.GPUEngine, Force: order.Force,
		Verify: order.Verify, SnapshotOnly: order.SnapshotOnly, Discard: order.Discard, KeyFile: order.KeyFile, Hooks: hooksOf(ctx, report, order.Progress),
	}
	if order.Steps {
		o.Step = report.Pass
	}
	if order.Key != nil {
		var err error
		if o.Key, err = signature.ParsePrivateKey(order.Key); err != nil {
			return o, err
		}
	}
	if order.Push != nil {
		to := restore.RegistryOptions(*order.Push, v.config)
		to.Progress = o.Progress
		if order.Debug {
			to.Trace = func(r registry.Request) { restore.TraceRequest(ctx, r) }
		}
		o.Push = &to
	}
	return o, o.Check()
}

// waitsTime is how long is between two looks what an activity waits for.
const waitsTime = 500 * time.Millisecond

// hooksOf returns hooks that report to the command, whose user may look at the progress.
func hooksOf(ctx context.Context, report *worker.Report, progress bool) restore.Hooks {
	h := restore.Hooks{
		Warn: func(format string, args ...any) { report.Tell(worker.News{Warning: fmt.Sprintf(format, args...)}) },
		Say:  func(format string, args ...any) { report.Tell(worker.News{Saying: fmt.Sprintf(format, args...)}) },
	}
	if !progress {
		return h
	}
	h.Progress = func(what string, done, total int64) {
		report.Tell(worker.News{Progress: &worker.Progress{What: what, Done: done, Total: total}})
	}
	h.Ended = func(activity string) { report.Tell(worker.News{Ended: activity}) }
	h.WaitsFor = func(activity string, why func() string) {
		go func() {
			for last := ""; ctx.Err() == nil; time.Sleep(waitsTime) {
				if now := why(); now != last {
					report.Tell(worker.News{Waits: &worker.Waits{Activity: activity, For: now}})
					last = now
				}
			}
		}()
	}
	return h
}
