package image

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// memoryStore is a blob store in memory.
type memoryStore struct {
	mu    sync.Mutex
	blobs map[digest.Digest][]byte
	open  int // writers neither committed nor closed

	// write, if set, sees every piece that is written and may refuse it.
	write func(n int) error
}

var _ BlobStore = (*memoryStore)(nil)

func newMemoryStore() *memoryStore { return &memoryStore{blobs: make(map[digest.Digest][]byte)} }

func (m *memoryStore) clone() *memoryStore {
	m.mu.Lock()
	defer m.mu.Unlock()
	return &memoryStore{blobs: maps.Clone(m.blobs)}
}

func (m *memoryStore) Fetch(_ context.Context, d ocispec.Descriptor) (io.ReadCloser, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b, ok := m.blobs[d.Digest]
	if !ok {
		return nil, fmt.Errorf("blob %s: %w", d.Digest, errdefs.ErrNotFound)
	}
	return memoryReader{bytes.NewReader(b)}, nil
}

// memoryReader reads a blob in any order, as files do.
type memoryReader struct{ *bytes.Reader }

func (memoryReader) Close() error { return nil }

func (m *memoryStore) Exists(_ context.Context, d ocispec.Descriptor) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, ok := m.blobs[d.Digest]
	return ok, nil
}

func (m *memoryStore) Create(context.Context) (BlobWriter, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.open++
	return &memoryBlob{store: m}, nil
}

type memoryBlob struct {
	store *memoryStore
	buf   bytes.Buffer
	ended bool
}

func (b *memoryBlob) Write(p []byte) (int, error) {
	if b.store.write != nil {
		if err := b.store.write(len(p)); err != nil {
			return 0, err
		}
	}
	return b.buf.Write(p)
}

func (b *memoryBlob) Commit(ctx context.Context, mediaType string) (ocispec.Descriptor, error) {
	if err := ctx.Err(); err != nil {
		return ocispec.Descriptor{}, err
	}
	d := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(b.buf.Bytes()), Size: int64(b.buf.Len())}
	b.Close()
	b.store.mu.Lock()
	defer b.store.mu.Unlock()
	b.store.blobs[d.Digest] = b.buf.Bytes()
	return d, nil
}

func (b *memoryBlob) Close() error {
	b.store.mu.Lock()
	defer b.store.mu.Unlock()
	if !b.ended {
		b.ended = true
		b.store.open--
	}
	return nil
}
