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
	"golang.org/x/sync/errgroup"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/store"
)

// early are the small parts of a snapshot: verified, and on their way into the store. Each waits for the disk there, which on a busy
// host takes longer than all that is decided by what they say.
type early struct {
	ctx     context.Context // of placing
	cancel  context.CancelFunc
	placing errgroup.Group
	settled func() error // waits until all parts are in the store, and then the manifest; nil: there is no manifest yet

	manifest ocispec.Descriptor
	data     []byte // of the manifest

	mu    sync.Mutex
	parts map[digest.Digest]*os.File // guarded by mu until settle
}

func newEarly(ctx context.Context) *early {
	e := &early{parts: make(map[digest.Digest]*os.File)}
	e.ctx, e.cancel = context.WithCancel(ctx)
	return e
}

// add takes in a part, and begins to bring it into the store: another process may have what this one waits for, and wait for this part.
func (e *early) add(d ocispec.Descriptor, p *store.Ingest) error {
	content, err := p.Content()
	if err != nil {
		return errors.Join(err, p.Close())
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.parts[d.Digest] = content
	e.placing.Go(func() error {
		_, err := p.Commit(e.ctx, d.MediaType)
		return err
	})
	return nil
}

// settle begins to bring the manifest into the store, after all parts.
func (e *early) settle(dst *store.Store, manifest ocispec.Descriptor, data []byte) {
	e.manifest, e.data = manifest, data
	e.settled = sync.OnceValue(func() error {
		if err := e.placing.Wait(); err != nil {
			return err
		}
		return dst.Push(e.ctx, manifest, bytes.NewReader(data))
	})
	go e.settled()
}

// close breaks off what is not in the store yet, and waits for that. It is kept for the next attempt.
func (e *early) close() {
	e.cancel()
	_ = e.placing.Wait() // what it has is in the store, or kept
	if e.settled != nil {
		_ = e.settled()
	}
	for d, content := range e.parts {
		content.Close()
		delete(e.parts, d)
	}
}

// Settle waits until the small parts are in the store.
func (p *Puller) Settle(ctx context.Context) error { return p.failed(ctx, p.early.settled()) }

// Fetch implements [image.Fetcher]: the small parts as soon as they are here, and what the store has.
func (p *Puller) Fetch(ctx context.Context, d ocispec.Descriptor) (io.ReadCloser, error) {
	if d.Digest == p.early.manifest.Digest {
		return io.NopCloser(bytes.NewReader(p.early.data)), nil
	}
	if content := p.early.parts[d.Digest]; content != nil {
		return io.NopCloser(io.NewSectionReader(content, 0, d.Size)), nil
	}
	return p.dst.Fetch(ctx, d)
}

var _ image.Fetcher = (*Puller)(nil)
