package restore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/registry"
	"github.com/cryo-project/cryo/image/rootfs"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/image/warm"
	"github.com/cryo-project/cryo/shim/order"
)

// Prepared is a snapshot for which all is done that can be done without the container. Memory may still be pulled.
type Prepared struct {
	*Plan
	Descriptor ocispec.Descriptor
	Eager      string // why memory is not filled in while the container runs; empty: it is
	PullFirst  string // why all was pulled before; empty: it was not
	Pulled     bool   // some of it was not in the local store
	Prewarmed  bool   // cryo prewarm has kept it ready
	Since      time.Time

	store  *store.Store
	work   string
	ready  *warm.Entry
	puller *registry.Puller
	coming *arriving // nil: all is here
}

// Prepare finds the snapshot ref, decides whether and how it is restored, and begins to pull what is missing. work is a directory of the caller's, on the
// store's file system. The caller closes what it returns.
func Prepare(ctx context.Context, s *store.Store, work, ref string, here *Looking, j *Judging, o Options) (_ *Prepared, err error) {
	r := &Prepared{store: s, work: work}
	defer func() {
		if err != nil {
			r.Close()
		}
	}()
	ctx, located := within(ctx, o.Timeout, ref)
	defer func() { err = late(ctx, err) }()
	if ref, r.Descriptor, r.puller, err = Locate(ctx, s, ref, o.Pull, o.Registry, j); err != nil {
		return nil, err
	}
	r.Since = time.Now()
	from, ready, err := fetcherOf(ctx, s, r.Descriptor)
	if err != nil {
		return nil, err
	}
	r.ready, r.Prewarmed, r.Pulled = ready, ready != nil, r.puller != nil
	probing, stop := context.WithCancel(ctx)
	defer stop()
	whyPullFirst := probe(probing, r.puller, o)
	if r.puller != nil && ready == nil {
		from = r.puller
	}
	if r.Plan, err = consider(ctx, s, r.Descriptor, from, ref, r.puller, work, here, o); err != nil {
		return nil, err
	}
	located()
	r.Warnings = append(j.warning(), r.Warnings...)
	r.Origin = j.Origin
	r.Eager = r.eager(o)
	if err := r.checkRoom(ctx); err != nil {
		return nil, err
	}
	if r.puller == nil {
		return r, nil
	}
	if err := r.puller.Settle(ctx); err != nil {
		return nil, err
	}
	if ready == nil {
		r.From = s
	}
	return r, r.begin(ctx, whyPullFirst)
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
	err = r.store.CheckRoom(ctx, missing, m.Total-m.Zero-m.Device)
	if err != nil && r.puller != nil {
		err = errors.Join(err, r.puller.Abandon())
	}
	return err
}

// TimeoutError says that a snapshot was not here in time. Its kind is DeadlineExceeded.
type TimeoutError struct {
	Ref   string
	After time.Duration
}

func (e *TimeoutError) Error() string {
	return fmt.Sprintf("fetch %s: all but its memory is not here after %s", e.Ref, e.After)
}

// Hint says what to do.
func (e *TimeoutError) Hint() string {
	return "see whether the registry answers, or raise timeout under [restore.annotation] in the configuration"
}

// Unwrap gives the kind.
func (e *TimeoutError) Unwrap() error { return context.DeadlineExceeded }

// within gives a context that ends after a time with a [TimeoutError] as its cause, unless in time is called before; 0: it does not. What goes on afterwards uses it as well.
func within(ctx context.Context, limit time.Duration, ref string) (_ context.Context, inTime func()) {
	if limit == 0 {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(limit, func() { cancel(&TimeoutError{Ref: ref, After: limit}) })
	return ctx, func() { timer.Stop() }
}

// late gives the reason why something has failed with err where that is that it took too long.
func late(ctx context.Context, err error) error {
	var timeout *TimeoutError
	if err != nil && errors.As(context.Cause(ctx), &timeout) {
		return timeout
	}
	return err
}

// begin begins to pull what is missing, or pulls it where that has to be first.
func (r *Prepared) begin(ctx context.Context, whyPullFirst func(eager string) (string, error)) (err error) {
	if r.Prewarmed {
		r.PullFirst = "it is prewarmed"
	} else if r.PullFirst, err = whyPullFirst(r.Eager); err != nil {
		return err
	}
	parallel, err := throughCache(ctx, r.puller)
	if err != nil {
		return err
	}
	if r.PullFirst != "" {
		err = r.puller.Finish(ctx)
	} else if r.coming, err = newArriving(ctx, r.store, r.puller, r.work, r.Snapshot.Config.GPU != nil); err == nil {
		r.From = r.coming.source
		if r.coming.whole {
			r.puller.First(r.Unpacked.OfProcesses())
		}
		r.coming.headStart(parallel)
	}
	r.Since = time.Now()
	return err
}

// Close ends the pull, and lets go of what was prepared.
func (r *Prepared) Close() {
	r.coming.close()
	if r.puller != nil {
		r.puller.Close()
	}
	if r.ready != nil {
		_ = r.ready.Close() // nothing was written
	}
}

// Lazy tells whether memory is filled in while the container runs.
func (r *Prepared) Lazy() bool { return r.Eager == "" }

// Cause gives the reason why what followed has failed with err, where that is the pull, which it ends.
func (r *Prepared) Cause(err error) error { return r.coming.cause(err) }

// Because gives the reason why the container could not be started where that is that its memory does not come.
func (r *Prepared) Because(err error) error { return r.coming.because(r.Name, err) }

// Arrives tells whether memory is being pulled, and whether the container waits for all of it.
func (r *Prepared) Arrives() (arrives, whole bool) {
	return r.coming != nil, r.coming != nil && r.coming.whole
}

// Await pulls all that nobody waits for, the container running, and waits until all is in the store. Called before that, it would take cores and the line from
// what makes the container run.
func (r *Prepared) Await() error {
	if r.coming == nil {
		return nil
	}
	r.coming.begin()
	return r.coming.await()
}

// memory says where the memory is that is filled in while the container runs; nil: CRIU's images have all.
func (r *Prepared) memory() *order.Order {
	if !r.Lazy() {
		return nil
	}
	return r.order(r.coming != nil && r.coming.whole)
}

// devices says where the memory is that processes had handed over; nil: they had none.
func (r *Prepared) devices() *order.Order {
	g := r.Snapshot.Config.GPU
	if g == nil || !slices.ContainsFunc(g.Processes, func(p image.GPUProcess) bool { return len(p.Pieces) > 0 }) {
		return nil
	}
	return r.order(true)
}

func (r *Prepared) order(whole bool) *order.Order {
	return &order.Order{Root: r.store.Root(), Snapshot: r.Snapshot.Descriptor, Images: r.Images, Arrival: r.coming.where(), Whole: whole}
}

// ApplyRootFS writes what the snapshot's container had changed into its root file system at root.
func (r *Prepared) ApplyRootFS(ctx context.Context, root string) error {
	if _, ok := r.Snapshot.RootFS(); !ok {
		return nil
	}
	return r.Snapshot.ReadRootFS(ctx, r.From, func(layer io.Reader) error { return rootfs.Apply(ctx, root, layer) })
}
