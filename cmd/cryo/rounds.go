package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/runtime/checkpoint"
	"github.com/cryo-project/cryo/runtime/pageserver"
)

// roundResult is what a round of a pre-dump has brought.
type roundResult struct {
	Bytes   int64   `json:"bytes"`
	Seconds float64 `json:"seconds"` // from the first to the last
}

// rounds is the way of what is dumped while a container runs. Its methods are for a nil one, too.
type rounds struct {
	kept *image.Rounds
	want int
	done chan struct{} // closed when no more rounds come

	mu   sync.Mutex    // held while a round comes; guards what follows, and kept
	took []roundResult // guarded by mu
	err  error         // why not all have come; guarded by mu
}

// takeInRounds waits for rounds in the background. work is a directory of ours.
func (a *app) takeInRounds(ctx context.Context, client *checkpoint.Client, work string, f checkpointFlags) (*rounds, error) {
	want := f.preDump
	kept, err := image.NewRounds(work, int64(os.Getpagesize()), f.packOptions(a))
	if err != nil {
		return nil, err
	}
	r := &rounds{kept: kept, want: want, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		for n := range want {
			if r.serve(ctx, client, fmt.Sprintf("round %d of %d", n+1, want)) != nil {
				return
			}
			a.progress.over(fmt.Sprintf("round %d of %d", n+1, want))
		}
	}()
	return r, nil
}

func (r *rounds) serve(ctx context.Context, client *checkpoint.Client, what string) error {
	conn, err := client.Round(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kept.Next(what)
	var start time.Time
	r.err = pageserver.Serve(conn, "", int64(os.Getpagesize()), r.kept, func() { start = time.Now() })
	if r.err == nil {
		r.took = append(r.took, roundResult{Bytes: r.kept.Received(), Seconds: time.Since(start).Seconds()})
	}
	return r.err
}

// last says that the dump comes. CRIU has been told that the round before is whole, but who told it may not have noted that yet.
func (r *rounds) last() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kept.Last()
}

// results are the rounds that have come.
func (r *rounds) results() []roundResult {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.took
}

// failure is why a round has failed; nil if none has.
func (r *rounds) failure() error {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// close drops what has come. The context has ended, and the dump comes no more.
func (r *rounds) close() {
	if r != nil {
		<-r.done
		r.kept.Close()
	}
}

// softDirtyError says that the kernel does not track what is written to. Its kind is FailedPrecondition.
type softDirtyError struct {
	name string
	said string // by CRIU
}

func (e *softDirtyError) Error() string {
	return fmt.Sprintf("checkpoint %s with --pre-dump: the kernel does not track which memory is written to (%s)", e.name, e.said)
}

func (e *softDirtyError) Hint() string {
	return "leave --pre-dump out, or boot a kernel with CONFIG_MEM_SOFT_DIRTY; cryo doctor tells as soft-dirty whether there is one"
}

func (e *softDirtyError) Is(target error) bool { return target == errdefs.ErrFailedPrecondition }

// preDumpGPUError says that a container with GPUs has no rounds. Its kind is NotImplemented.
type preDumpGPUError struct{ name string }

func (e *preDumpGPUError) Error() string {
	return fmt.Sprintf("checkpoint %s with --pre-dump: the container has GPUs, and device memory comes into the memory of its processes at the freeze", e.name)
}

func (e *preDumpGPUError) Hint() string { return "leave --pre-dump out" }

func (e *preDumpGPUError) Is(target error) bool { return target == errdefs.ErrNotImplemented }

// checkPreDump refuses rounds that could not be taken.
func (a *app) checkPreDump(ctx context.Context, sub *subject) error {
	if sub.gpus {
		return &preDumpGPUError{name: sub.name}
	}
	c, err := a.config()
	if err != nil {
		return err
	}
	path, err := c.FindCRIU()
	if err != nil {
		return err
	}
	if said, err := criuCheck(ctx, path, "--feature", "mem_dirty_track"); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return &softDirtyError{name: sub.name, said: said}
	}
	return nil
}
