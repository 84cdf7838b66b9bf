package registry

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"sync"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/store"
)

// early are the small parts of a snapshot: verified, and on their way into the store. Each waits for the disk there, which on a busy
// host takes longer than all that is decided by what they say.
type early struct {
	manifest digest.Digest
	data     []byte // of the manifest

	ctx    context.Context // of placing
	cancel context.CancelFunc
	placed sync.WaitGroup
	done   chan struct{} // closed when all is in the store, or will not be; nil: settle was not called

	mu    sync.Mutex
	parts map[digest.Digest]*earlyPart // guarded by mu until settle
	err   error                        // guarded by mu until done is closed
}

func newEarly(ctx context.Context) *early {
	e := &early{parts: make(map[digest.Digest]*earlyPart)}
	e.ctx, e.cancel = context.WithCancel(ctx)
	return e
}

// earlyPart is one of them.
type earlyPart struct {
	content *os.File
	partial *store.Partial // nil: it is in the store. Until then others who want the blob wait
}

// add takes in a part, and begins to bring it into the store: another process may have what this one waits for, and wait for this part.
func (e *early) add(d ocispec.Descriptor, p *store.Partial) error {
	content, err := p.Content()
	if err != nil {
		return errors.Join(err, p.Close())
	}
	part := &earlyPart{content, p}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.parts[d.Digest] = part
	e.placed.Go(func() {
		if err := part.place(e.ctx); err != nil {
			e.mu.Lock()
			e.err = errors.Join(e.err, err)
			e.mu.Unlock()
		}
	})
	return nil
}

// place brings a part into the store.
func (p *earlyPart) place(ctx context.Context) error {
	if err := p.partial.Place(ctx); err != nil {
		return err
	}
	done := p.partial
	p.partial = nil
	return done.Close()
}

// settle begins to bring the manifest into the store, after all parts.
func (e *early) settle(dst *store.Store, manifest ocispec.Descriptor, data []byte) {
	e.manifest, e.data, e.done = manifest.Digest, data, make(chan struct{})
	go func() {
		defer close(e.done)
		if e.placed.Wait(); e.err == nil {
			e.err = dst.Push(e.ctx, manifest, bytes.NewReader(data))
		}
	}()
}

// settled waits until all is in the store.
func (e *early) settled() error {
	<-e.done
	return e.err
}

// close breaks off what is not in the store yet, and waits for that. It is kept for the next attempt, unless it is to be dropped.
func (e *early) close(drop bool) (err error) {
	e.cancel()
	e.placed.Wait()
	if e.done != nil {
		<-e.done
	}
	for d, p := range e.parts {
		if p.partial != nil && drop {
			err = errors.Join(err, p.partial.Drop())
		}
		if p.partial != nil {
			err = errors.Join(err, p.partial.Close())
		}
		err = errors.Join(err, p.content.Close())
		delete(e.parts, d)
	}
	return err
}

// Settle waits until the small parts are in the store.
func (p *Puller) Settle(ctx context.Context) error { return p.failed(ctx, p.early.settled()) }

// Fetch implements [image.Fetcher]: the small parts as soon as they are here, and what the store has.
func (p *Puller) Fetch(ctx context.Context, d ocispec.Descriptor) (io.ReadCloser, error) {
	if d.Digest == p.early.manifest {
		return io.NopCloser(bytes.NewReader(p.early.data)), nil
	}
	if part := p.early.parts[d.Digest]; part != nil {
		return io.NopCloser(io.NewSectionReader(part.content, 0, d.Size)), nil
	}
	return p.dst.Fetch(ctx, d)
}

var _ image.Fetcher = (*Puller)(nil)
