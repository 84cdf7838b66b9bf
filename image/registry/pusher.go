package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"
	"oras.land/oras-go/v2/registry"
	"oras.land/oras-go/v2/registry/remote/auth"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/store"
)

// errClosed ends what a [Pusher] has under way that is not wanted any more.
var errClosed = errors.New("the push was given up")

// Pusher sends blobs of a snapshot that is still being made. [Pusher.Add] takes those that are complete in the local store,
// [Pusher.Finish] sends the rest, then the manifest, and the name last: until then the registry has nothing that a client could
// take for a snapshot.
//
// An error stops the sending and nothing else; Finish returns it.
type Pusher struct {
	src  *store.Store
	ref  string // as the user wrote it
	name string // and as it is normalised
	at   registry.Reference
	o    Options

	ctx    context.Context // of what is under way; ends with the first error
	stop   context.CancelCauseFunc
	work   *errgroup.Group
	slots  chan struct{} // each blob that is sent takes one
	hurry  func()        // gives slots for all that may be sent at once, once
	opened chan struct{} // closed when repo and from are set
	sum    *meter

	repo *repo
	from map[digest.Digest]string

	image imaging

	mu      sync.Mutex
	seen    map[digest.Digest]bool // ever added; guarded by mu
	pending atomic.Int64           // blobs that were added and are not sent
}

// NewPusher prepares to send a snapshot of src and to give it the name ref. The registry is spoken to in the background: the
// only error now is that of a name, [store.InvalidRef]. The caller keeps an [store.Operation] open and must call Close.
func NewPusher(ctx context.Context, src *store.Store, ref string, o Options) (*Pusher, error) {
	name, at, err := parse(ref)
	if err != nil {
		return nil, fmt.Errorf("push: %w", err)
	}
	p := &Pusher{
		src: src, ref: ref, name: name, at: at, o: o, slots: make(chan struct{}, o.concurrency()), opened: make(chan struct{}),
		seen: make(map[digest.Digest]bool), sum: newMeter("push", 0, o),
	}
	p.ctx, p.stop = context.WithCancelCause(ctx)
	p.work, p.ctx = errgroup.WithContext(p.ctx)
	// Until the snapshot is whole as many are sent at once as half of the spare cores, four at most, and none where no cores are spare: the registry may be on this
	// machine, and CRIU and what packs go first.
	early := min(image.HalfCores(image.AllCores()), 4, o.concurrency())
	p.give(early)
	p.hurry = sync.OnceFunc(func() { p.give(o.concurrency() - early) })
	p.work.Go(p.open)
	return p, nil
}

func (p *Pusher) give(slots int) {
	for range slots {
		p.slots <- struct{}{}
	}
}

func (p *Pusher) open() error {
	r, err := open(p.ctx, p.name, p.at, p.o)
	if err != nil {
		return err
	}
	p.repo, p.from = r, mountable(p.ctx, p.src, r)
	close(p.opened)
	return nil
}

// sendOwn sends a blob of the snapshot.
func (p *Pusher) sendOwn(ctx context.Context, d ocispec.Descriptor) error {
	return p.repo.upload(ctx, source{d: d, from: p.from[d.Digest], open: func() (io.ReadCloser, error) { return p.src.Fetch(ctx, d) }}, &tracker{m: p.sum})
}

// Add has blobs sent that are complete in the store. It does not wait; a blob that was added before is not sent again.
func (p *Pusher) Add(blobs ...ocispec.Descriptor) { p.add(p.sendOwn, blobs) }

func (p *Pusher) add(send func(context.Context, ocispec.Descriptor) error, blobs []ocispec.Descriptor) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, d := range blobs {
		if p.seen[d.Digest] {
			continue
		}
		p.seen[d.Digest] = true
		p.pending.Add(1)
		p.work.Go(func() error {
			defer p.pending.Add(-1)
			for _, c := range []chan struct{}{p.opened, p.slots} {
				select {
				case <-c:
				case <-p.ctx.Done():
					return context.Cause(p.ctx)
				}
			}
			defer p.give(1)
			return send(p.repo.scoped(p.ctx, auth.ActionPull, auth.ActionPush), d)
		})
	}
}

// Allowed asks the registry whether we may push: it begins an upload and cancels it.
func (p *Pusher) Allowed(ctx context.Context) error {
	select {
	case <-p.opened:
		return p.failed(ctx, p.repo.askUpload(p.repo.scoped(ctx, auth.ActionPull, auth.ActionPush)))
	case <-p.ctx.Done():
		return p.failed(ctx, p.end(nil))
	case <-ctx.Done():
		return p.failed(ctx, context.Cause(ctx))
	}
}

// Idle reports whether everything that was added is sent.
func (p *Pusher) Idle() bool { return p.pending.Load() == 0 }

// Finish sends what is missing of the snapshot desc, its manifest, its signatures, and its name. With [Pusher.WithImage] the name stands for an index of an
// image and the snapshot.
func (p *Pusher) Finish(ctx context.Context, desc ocispec.Descriptor) error {
	return p.failed(ctx, p.finish(ctx, desc))
}

// failed returns what came of it to a user.
func (p *Pusher) failed(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if p.repo != nil {
		err = p.repo.classify(ctx, err)
	}
	return fmt.Errorf("push %s: %w", p.ref, err)
}

func (p *Pusher) finish(ctx context.Context, desc ocispec.Descriptor) error {
	defer context.AfterFunc(ctx, func() { p.stop(context.Cause(ctx)) })()
	op, err := p.src.Begin(ctx)
	if err != nil {
		return p.end(err)
	}
	defer op.Close()
	m, data, err := store.ReadSnapshot(ctx, p.src, p.name, desc)
	if err != nil {
		return p.end(err)
	}
	if d, err := p.at.Digest(); err == nil && d != desc.Digest {
		return p.end(store.InvalidRef(p.name, fmt.Errorf("the snapshot has digest %s", desc.Digest)))
	}
	signed, err := p.src.Signatures(ctx, desc.Digest)
	if err != nil {
		return p.end(err)
	}
	blobs := store.Blobs(m)
	all := total(blobs) + desc.Size
	for _, a := range signed {
		all += a.Bundle.Descriptor.Size
	}
	p.Add(blobs...)
	p.hurry()
	p.sum.expect(all + total(p.image.layers(p.ctx)))
	if err := p.end(nil); err != nil {
		return err
	}
	ctx = p.repo.scoped(ctx, auth.ActionPull, auth.ActionPush)
	untagged := p.repo.untagged()
	if err := untagged.putManifest(ctx, desc, data, m.Subject); err != nil {
		return err
	}
	p.sum.add(desc.Size)
	// Before the name: a client that pulls by that and asks for signatures finds them.
	if err := untagged.putSignatures(ctx, signed, desc, p.sum); err != nil {
		return err
	}
	named, err := p.putImage(ctx, desc)
	if err != nil || named.Digest == "" {
		return err
	}
	return p.repo.tag(ctx, named)
}

// end waits until all that was added is sent, or, for a reason, until nothing is under way any more, which it gives back.
func (p *Pusher) end(reason error) error {
	if reason != nil {
		p.stop(reason)
	}
	if err := p.work.Wait(); reason == nil {
		return err
	}
	return reason
}

// Close gives up what is under way. What was sent stays in the registry, where the next push finds it.
func (p *Pusher) Close() {
	_ = p.end(errClosed)
	if b := p.image.base; b != nil && b.Close != nil {
		b.Close()
	}
	if p.repo != nil {
		p.repo.close()
	}
}
