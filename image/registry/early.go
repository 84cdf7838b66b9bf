package registry

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/store"
)

// early are the small parts of a snapshot: verified, and on their way into the store. Each waits for the disk there, which on a busy
// host takes longer than all that is decided by what they say.
type early struct {
	manifest digest.Digest
	data     []byte // of the manifest

	mu    sync.Mutex
	parts map[digest.Digest]*store.Partial // guarded by mu until settle

	cancel context.CancelFunc // nil: settle was not called
	done   chan struct{}
	err    error // to be read when done is closed
}

// add takes in a part.
func (e *early) add(d ocispec.Descriptor, p *store.Partial) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.parts == nil {
		e.parts = make(map[digest.Digest]*store.Partial)
	}
	e.parts[d.Digest] = p
}

// settle begins to bring all parts into the store, and the manifest after them.
func (e *early) settle(ctx context.Context, dst *store.Store, manifest ocispec.Descriptor, data []byte) {
	ctx, e.cancel = context.WithCancel(ctx)
	e.manifest, e.data, e.done = manifest.Digest, data, make(chan struct{})
	go func() {
		defer close(e.done)
		group, placing := errgroup.WithContext(ctx)
		for _, p := range e.parts {
			group.Go(func() error { return p.Place(placing) })
		}
		if e.err = group.Wait(); e.err == nil {
			e.err = dst.Push(ctx, manifest, bytes.NewReader(data))
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
	if e.cancel != nil {
		e.cancel()
		<-e.done
	}
	for d, p := range e.parts {
		if drop {
			err = errors.Join(err, p.Drop())
		}
		err = errors.Join(err, p.Close())
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
		return part.Content()
	}
	return p.dst.Fetch(ctx, d)
}

var _ image.Fetcher = (*Puller)(nil)
