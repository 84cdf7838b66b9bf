package take

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/spec/failure"
	"github.com/cryo-project/cryo/runtime/checkpoint"
	"github.com/cryo-project/cryo/runtime/host"
	"github.com/cryo-project/cryo/runtime/pageserver"
)

// rounds is the way of what is dumped while a container runs. Its methods are for a nil one, too.
type rounds struct {
	kept *image.Rounds
	done chan struct{} // closed when no more rounds come

	mu   sync.Mutex // held while a round comes; guards what follows, and kept
	took []Round    // guarded by mu
	err  error      // why not all have come; guarded by mu
}

// takeInRounds waits for rounds in the background. work is a directory of ours.
func (t *taking) takeInRounds(ctx context.Context, client *checkpoint.Client, work string) (*rounds, error) {
	kept, err := image.NewRounds(work, int64(os.Getpagesize()), t.packOptions())
	if err != nil {
		return nil, err
	}
	r := &rounds{kept: kept, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		for n := range t.PreDump {
			what := fmt.Sprintf("round %d of %d", n+1, t.PreDump)
			if r.serve(ctx, client, what) != nil {
				return
			}
			t.Ended(what)
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
		r.took = append(r.took, Round{Bytes: r.kept.Received(), Seconds: time.Since(start).Seconds()})
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
func (r *rounds) results() []Round {
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

// checkPreDump refuses rounds that could not be taken.
func (t *taking) checkPreDump(ctx context.Context, gpus bool) error {
	if gpus {
		return failure.New(errdefs.ErrNotImplemented, "leave --pre-dump out",
			"checkpoint %s with --pre-dump: the container has GPUs, and device memory comes into the memory of its processes at the freeze", t.Container)
	}
	path, err := t.Config.FindCRIU()
	if err != nil {
		return err
	}
	if said, err := host.Check(ctx, path, "--feature", "mem_dirty_track"); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return failure.New(errdefs.ErrFailedPrecondition, "leave --pre-dump out, or boot a kernel with CONFIG_MEM_SOFT_DIRTY; cryo doctor tells as soft-dirty whether there is one",
			"checkpoint %s with --pre-dump: the kernel does not track which memory is written to (%s)", t.Container, said)
	}
	return nil
}
