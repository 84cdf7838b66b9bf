package restore

import (
	"context"
	"errors"
	"os"
	"slices"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/registry"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/runtime/channel"
	"github.com/cryo-project/cryo/shim/worker"
)

// Prepared is a snapshot for which all is done that can be done without the container. Memory may still be pulled.
type Prepared struct {
	*Plan
	Descriptor ocispec.Descriptor
	Eager      string // why memory is not filled in while the container runs; empty: it is
	PullFirst  string // why all was pulled before; empty: it was not
	Pulled     bool   // some of it was not in the local store
	Since      time.Time

	wipe   bool // memory that fork would wipe in a child
	store  *store.Store
	puller *registry.Puller
	pull   *lazyPull // nil: all is here
}

// Prepare finds the snapshot ref, decides whether and how it is restored, and begins to pull what is missing. work is a directory of the caller's, on the
// store's file system. The caller closes what it returns.
func Prepare(ctx context.Context, s *store.Store, work, ref string, here *Looking, j *Judging, o Options) (_ *Prepared, err error) {
	r := &Prepared{store: s, wipe: !o.Move}
	defer func() {
		if err != nil {
			r.Close()
		}
	}()
	ctx, located := within(ctx, o.Timeout, ref)
	defer func() { err = late(ctx, err) }()
	if o.Trial != nil {
		r.Descriptor, err = *o.Trial, j.local(ctx, s, ref, o.Trial.Digest)
	} else {
		ref, r.Descriptor, r.puller, err = Locate(ctx, s, ref, o.Pull, o.Registry, j)
	}
	if err == nil && o.Ordered && r.Descriptor.Digest != o.Digest {
		err = moved(ref)
	}
	if err != nil {
		return nil, err
	}
	r.Since = time.Now()
	s.UsePrewarmed(r.Descriptor.Digest)
	r.Pulled = r.puller != nil
	probing, stop := context.WithCancel(ctx)
	defer stop()
	var from image.Fetcher = s
	var answer <-chan probed // nil: nothing is asked for
	if r.puller != nil {
		from = r.puller
		answer = probe(probing, r.puller, o)
	}
	o.GPUs.LeaveToShim = r.puller == nil || o.Ordered // else nothing is fetched that the shim would refuse; a command has asked
	if r.Plan, err = consider(ctx, s, r.Descriptor, from, ref, work, here, o); err == nil {
		located()
		r.Warnings = append(j.warning(), r.Warnings...)
		r.Origin = j.Origin
		r.Eager = r.eager(o)
		err = r.checkRoom(ctx)
	}
	if err != nil && r.puller != nil { // what was fetched of a snapshot that is refused goes again
		err = errors.Join(err, r.puller.Abandon())
	}
	if err != nil {
		return nil, err
	}
	if r.puller == nil {
		return r, nil
	}
	if err := r.puller.Settle(ctx); err != nil {
		return nil, err
	}
	r.From = s
	return r, r.begin(ctx, <-answer, o)
}

// checkRoom refuses what does not fit on the disk: what is to be pulled has been found to, but not the memory that CRIU reads from files.
func (r *Prepared) checkRoom(ctx context.Context) (err error) {
	if r.Lazy() {
		return nil
	}
	var missing []ocispec.Descriptor
	if r.puller != nil {
		if missing, err = r.puller.Missing(ctx); err != nil {
			return err
		}
	}
	m := r.Snapshot.Config.Memory
	return r.store.CheckRoom(ctx, missing, m.Total-m.Zero-m.Device)
}

// within returns a context that ends after a time, for a cause of the kind DeadlineExceeded, unless in time is called before; 0: it does not. What goes on afterwards uses it as well.
func within(ctx context.Context, limit time.Duration, ref string) (_ context.Context, inTime func()) {
	if limit == 0 {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(limit, func() {
		cancel(failure.New(context.DeadlineExceeded, "see whether the registry answers, or raise timeout under [restore.policy] in the configuration",
			"fetch %s: all but its memory is not here after %s", ref, limit))
	})
	return ctx, func() { timer.Stop() }
}

// late returns the reason why something has failed with err where that is that it took too long.
func late(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, context.DeadlineExceeded) {
		return cause
	}
	return err
}

// begin begins to pull what is missing, or pulls it where that has to be first.
func (r *Prepared) begin(ctx context.Context, a probed, o Options) (err error) {
	if a.err != nil {
		return a.err
	}
	if r.PullFirst = a.why; a.why != allHere && !o.PullFirst && r.Eager != "" {
		r.PullFirst = r.Eager
	}
	parallel, err := throughCache(ctx, r.puller)
	if err != nil {
		return err
	}
	if r.PullFirst != "" {
		err = r.puller.Finish(ctx)
	} else if r.pull, err = newLazyPull(ctx, r.store, r.puller, r.Snapshot.Config.GPU != nil, o); err == nil {
		r.From = r.pull.source
		if r.pull.whole {
			r.puller.First(r.Unpacked.OfProcesses())
		}
		r.pull.headStart(parallel)
	}
	r.Since = time.Now()
	return err
}

// release lets go of the registry and of blobs in the store: all that is needed has come, and is open.
func (r *Prepared) release() {
	if r.puller != nil {
		r.puller.Close()
		r.puller = nil
	}
}

// Close ends the pull, and lets go of what was prepared.
func (r *Prepared) Close() {
	if r.Plan != nil {
		r.closeBox()
	}
	r.pull.close()
	r.release()
}

// Lazy reports whether memory is filled in while the container runs.
func (r *Prepared) Lazy() bool { return r.Eager == "" }

// hasDevices reports whether processes had handed device memory over.
func (r *Prepared) hasDevices() bool {
	g := r.Snapshot.Config.GPU
	return g != nil && slices.ContainsFunc(g.Processes, func(p image.GPUProcess) bool { return len(p.Pieces) > 0 })
}

// Fill fills in the memory of the processes that the shim names over c, in bytes a second of what no process waits for; see [worker.HostMemory.Serve].
func (r *Prepared) Fill(ctx context.Context, c *channel.Channel, rate int64) error {
	pulling, ctx := r.pull.followed(ctx)
	m := worker.HostMemory{From: r.From, Snapshot: r.Snapshot.Descriptor, Images: r.Images, Pulling: pulling, Waiting: r.pull.waiting, Rate: rate, Wipe: r.wipe}
	return m.Serve(ctx, c)
}

// Load loads device memory; see [worker.DeviceMemory.Serve].
func (r *Prepared) Load(ctx context.Context, c *channel.Channel, keeperEnd *os.File) error {
	pulling, ctx := r.pull.followed(ctx)
	m := worker.DeviceMemory{From: r.From, Snapshot: r.Snapshot.Descriptor, Pulling: pulling}
	return m.Serve(ctx, c, keeperEnd)
}
