package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"
	"oras.land/oras-go/v2/registry"
	"oras.land/oras-go/v2/registry/remote/auth"

	"github.com/cryo-project/cryo/image/cores"
	"github.com/cryo-project/cryo/image/store"
)

// errClosed ends what a [Pusher] has under way that is not wanted any more.
var errClosed = errors.New("the push was given up")

// Pusher sends blobs of a snapshot that is still being made. [Pusher.Add] takes those that are complete in the local store,
// [Pusher.Finish] sends the rest, then the manifest, and the name last: until then the registry has nothing that anybody could
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
	opened chan struct{} // closed when repo is set
	sum    *meter

	// Set by run, for the workers and for whoever has waited for work, or for opened, which is about repo alone.
	repo *repo
	from map[digest.Digest]string

	image imaging

	mu    sync.Mutex
	more  sync.Cond              // of mu: something of what follows has changed, or ctx has ended
	queue []ocispec.Descriptor   // guarded by mu; not under way yet
	later []ocispec.Descriptor   // guarded by mu; layers of the base image, sent when queue is empty
	seen  map[digest.Digest]bool // guarded by mu; ever queued
	whole bool                   // guarded by mu; the snapshot is, and nobody needs the cores
	all   bool                   // guarded by mu; nothing more comes
	busy  int                    // guarded by mu; blobs that are under way
}

// NewPusher prepares to send a snapshot of src and to give it the name ref. The registry is spoken to in the background: the
// only error now is that of a name, [store.InvalidRef]. The caller keeps an [store.Operation] open and must call Close.
func NewPusher(ctx context.Context, src *store.Store, ref string, o Options) (*Pusher, error) {
	name, at, err := parse(ref)
	if err != nil {
		return nil, fmt.Errorf("push: %w", err)
	}
	p := &Pusher{src: src, ref: ref, name: name, at: at, o: o, opened: make(chan struct{}), seen: make(map[digest.Digest]bool), sum: newMeter("push", 0, o)}
	p.more.L = &p.mu
	p.ctx, p.stop = context.WithCancelCause(ctx)
	p.work, p.ctx = errgroup.WithContext(p.ctx)
	context.AfterFunc(p.ctx, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.more.Broadcast()
	})
	p.work.Go(p.run)
	return p, nil
}

// run opens the registry and starts the workers. Until the snapshot is whole there are as many as half of the spare cores, four at most, and none where no cores are
// spare: the registry may be on this machine, and CRIU and what packs go first.
func (p *Pusher) run() error {
	r, err := open(p.ctx, p.name, p.at, p.o)
	if err != nil {
		return err
	}
	p.repo = r
	close(p.opened)
	p.from = mountable(p.ctx, p.src, r)
	early := min(cores.Half(cores.All()), p.o.concurrency())
	for n := range p.o.segments() {
		p.work.Go(func() error { return p.send(n < early) })
	}
	return nil
}

// send sends blobs until there are no more; early: also before all are known.
func (p *Pusher) send(early bool) error {
	ctx := p.repo.scoped(p.ctx, auth.ActionPull, auth.ActionPush)
	for {
		d, ofBase, ok := p.next(early)
		if !ok {
			return context.Cause(p.ctx)
		}
		send := p.sendOwn
		if ofBase {
			send = p.sendLayer
		}
		if err := send(ctx, d); err != nil {
			return err
		}
		p.mu.Lock()
		p.busy--
		p.mu.Unlock()
	}
}

// sendOwn sends a blob of the snapshot.
func (p *Pusher) sendOwn(ctx context.Context, d ocispec.Descriptor) error {
	return p.repo.upload(ctx, source{d: d, from: p.from[d.Digest], open: func() (io.ReadCloser, error) { return p.src.Fetch(ctx, d) }}, &tracker{m: p.sum})
}

// next waits for a blob, and says whether it is a layer of the base image; there is none any more when all are under way or ctx has ended.
func (p *Pusher) next(early bool) (d ocispec.Descriptor, ofBase, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for ; p.ctx.Err() == nil; p.more.Wait() {
		if !early && !p.whole && !p.all {
			continue
		}
		for _, from := range []*[]ocispec.Descriptor{&p.queue, &p.later} {
			if all := *from; len(all) > 0 {
				*from = all[1:]
				p.busy++
				return all[0], from == &p.later, true
			}
		}
		if p.all {
			break
		}
	}
	return ocispec.Descriptor{}, false, false
}

// Add has blobs sent that are complete in the store. It does not wait; a blob that was added before is not sent again.
func (p *Pusher) Add(blobs ...ocispec.Descriptor) { p.add(&p.queue, blobs) }

func (p *Pusher) add(queue *[]ocispec.Descriptor, blobs []ocispec.Descriptor) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, d := range blobs {
		if !p.seen[d.Digest] {
			p.seen[d.Digest] = true
			*queue = append(*queue, d)
		}
	}
	p.more.Broadcast()
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

// Idle says whether everything that was added is sent.
func (p *Pusher) Idle() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.queue) == 0 && len(p.later) == 0 && p.busy == 0
}

// Finish sends what is missing of the snapshot desc, its manifest, its signatures, and its name. With [Pusher.WithImage] the name stands for an index of an
// image and the snapshot.
func (p *Pusher) Finish(ctx context.Context, desc ocispec.Descriptor) error {
	return p.failed(ctx, p.finish(ctx, desc))
}

// failed says what came of it to a user.
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
	data, err := store.ReadAll(ctx, p.src, desc, store.MaxManifest)
	if err != nil {
		return p.end(err)
	}
	m, err := store.ParseSnapshot(p.name, desc, data)
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
	blobs := unique(append([]ocispec.Descriptor{m.Config}, m.Layers...))
	all := total(blobs) + desc.Size
	for _, a := range signed {
		all += a.Bundle.Descriptor.Size
	}
	p.Add(blobs...)
	p.change(&p.whole)
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
	// Before the name: whoever pulls by that and asks for signatures finds them.
	if err := untagged.putSignatures(ctx, signed, desc, p.sum); err != nil {
		return err
	}
	named, err := p.putImage(ctx, desc)
	if err != nil || named.Digest == "" {
		return err
	}
	return p.repo.tag(ctx, named)
}

// change sets whole or all.
func (p *Pusher) change(set *bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	*set = true
	p.more.Broadcast()
}

// end waits until all that was added is sent, or, for a reason, until nothing is under way any more, which it gives back.
func (p *Pusher) end(reason error) error {
	p.change(&p.all)
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
