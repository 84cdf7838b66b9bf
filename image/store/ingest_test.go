package store_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image/format"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/integration/storetest"
)

// What goes through the page cache is found damaged, begun anew, interrupted and resumed, and read while it grows, as what goes past it.
func TestIngestThroughCache(t *testing.T) {
	s := storetest.Open(t)
	op, err := s.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer op.Close()
	const size = 3<<20 + 5
	data := storetest.Bytes(1, size)
	d := ocispec.Descriptor{Digest: digest.FromBytes(data), Size: size}
	open := func() *store.Ingest {
		t.Helper()
		p, err := s.Resume(t.Context(), d)
		if err != nil {
			t.Fatal(err)
		}
		p.ThroughCache()
		return p
	}
	write := func(p *store.Ingest, b []byte) {
		t.Helper()
		for len(b) > 0 {
			n, err := p.Write(b[:min(len(b), 1<<20)])
			if err != nil {
				t.Fatal(err)
			}
			b = b[n:]
		}
	}
	p := open()
	write(p, make([]byte, size))
	if err := p.Verify(t.Context()); err == nil || p.Offset() != 0 {
		t.Fatalf("damage: %v, %d bytes are there", err, p.Offset())
	}
	write(p, data[:1<<20+9])
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	p = open()
	if p.Offset() != 1<<20+9 {
		t.Fatalf("%d bytes were kept", p.Offset())
	}
	write(p, data[p.Offset():])
	f, err := p.Content()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if got, err := io.ReadAll(f); err != nil || !bytes.Equal(got, data) {
		t.Errorf("other bytes, or %v", err)
	}
	if err := commit(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if all, err := store.ReadAll(t.Context(), s, d, size); err != nil || !bytes.Equal(all, data) {
		t.Errorf("in the store: %v", err)
	}
	if left, err := os.ReadDir(s.Root() + "/partial"); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// What is hashed later is what the file has then, with what was hashed before, and damage is found as ever. What is begun anew is hashed as it comes.
func TestIngestDefer(t *testing.T) {
	s := storetest.Open(t)
	op, err := s.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer op.Close()
	const size = 2<<20 + 77
	data := storetest.Bytes(1, size)
	d := ocispec.Descriptor{Digest: digest.FromBytes(data), Size: size}
	p, err := s.Resume(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	write := func(b []byte) {
		t.Helper()
		if _, err := p.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	partial := s.Root() + "/partial/" + d.Digest.Encoded()
	for name, test := range map[string]struct {
		before int // bytes that are hashed as they come
		change func(f *os.File) error
		want   bool
	}{
		"all":               {0, nil, true},
		"some":              {1<<20 + 5, nil, true},
		"another last byte": {300 << 10, func(f *os.File) error { _, err := f.WriteAt([]byte{^data[size-1]}, size-1); return err }, false},
		"too short":         {0, func(f *os.File) error { return f.Truncate(size - 1) }, false},
		"too long":          {0, func(f *os.File) error { return f.Truncate(size + 1) }, false},
	} {
		write(data[:test.before])
		p.Defer()
		write(data[test.before:])
		f, err := os.OpenFile(partial, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		if test.change != nil {
			if err := test.change(f); err != nil {
				t.Fatal(err)
			}
		}
		f.Close()
		if _, err := p.Commit(t.Context(), ""); !errdefs.IsDataLoss(err) {
			t.Errorf("%s: it is placed without having been verified, %v", name, err)
		}
		if err := p.Verify(t.Context()); (err == nil) != test.want {
			t.Errorf("%s: %v", name, err)
		} else if err != nil && p.Offset() != 0 {
			t.Errorf("%s: %d bytes are still there", name, p.Offset())
		}
		if test.want {
			if err := p.Reset(); err != nil {
				t.Fatal(err)
			}
		}
	}
	p.Defer()
	if err := p.Reset(); err != nil {
		t.Fatal(err)
	}
	write(data)
	if err := os.Truncate(partial, 0); err != nil { // nothing is read back
		t.Fatal(err)
	}
	if err := p.Verify(t.Context()); err != nil {
		t.Error(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.Reset(); err != nil {
		t.Fatal(err)
	}
	p.Defer()
	write(data)
	if err := p.Verify(ended); !errors.Is(err, context.Canceled) || p.Offset() != size {
		t.Errorf("called off: %v, %d bytes are there", err, p.Offset())
	}
}

// BenchmarkIngest writes four downloads side by side, past the page cache and through it, until they can be read and until they are in the
// store for good.
func BenchmarkIngest(b *testing.B) {
	const size, piece, files = 128 << 20, 1 << 20, 4
	data := storetest.Bytes(1, piece)
	h := sha256.New()
	for range size / piece {
		h.Write(data)
	}
	d := ocispec.Descriptor{Digest: digest.NewDigest(digest.SHA256, h), Size: size}
	for name, cached := range map[string]bool{"past": false, "through": true} {
		b.Run(name, func(b *testing.B) {
			var there time.Duration
			for b.Loop() {
				began, written := time.Now(), make(chan time.Duration, files)
				var all sync.WaitGroup
				for range files {
					s, err := store.Open(b.TempDir()) // each its own: it is the same blob
					if err != nil {
						b.Fatal(err)
					}
					all.Go(func() {
						if err := download(b.Context(), s, d, cached, data, func() { written <- time.Since(began) }); err != nil {
							b.Error(err)
						}
					})
				}
				all.Wait()
				close(written)
				var last time.Duration
				for one := range written {
					last = max(last, one)
				}
				there += last
			}
			b.ReportMetric(there.Seconds()/float64(b.N), "s-until-there")
			b.SetBytes(files * size)
		})
	}
}

func download(ctx context.Context, s *store.Store, d ocispec.Descriptor, cached bool, data []byte, there func()) error {
	op, err := s.Begin(ctx)
	if err != nil {
		return err
	}
	defer op.Close()
	p, err := s.Resume(ctx, d)
	if err != nil {
		return err
	}
	defer p.Close()
	if cached {
		p.ThroughCache()
	}
	buf := format.LendBuffer()
	defer format.ReturnBuffer(buf)
	for p.Offset() < d.Size {
		if _, err := p.Write(buf[:copy(buf, data)]); err != nil {
			return err
		}
	}
	there()
	return commit(ctx, p)
}

// commit makes a download a blob of the store, if it is one.
func commit(ctx context.Context, p *store.Ingest) error {
	if err := p.Verify(ctx); err != nil {
		return err
	}
	_, err := p.Commit(ctx, "")
	return err
}
