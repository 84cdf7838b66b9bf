package store_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/image/store/storetest"
)

// What arrives can be read as it arrives, until it is whole and afterwards, also where it turns out to be damaged and comes again. The
// reader has a store of its own, as another process would.
func TestGrowing(t *testing.T) {
	root := t.TempDir()
	open := func() *store.Store {
		s, err := store.Open(root)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	writer, reader := open(), open()
	op, err := writer.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer op.Close()
	data := storetest.Bytes(1, 3000)
	d := ocispec.Descriptor{Digest: digest.FromBytes(data), Size: 3000}
	g, err := reader.Growing(d)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	want := func(there int64) {
		t.Helper()
		if n, err := g.There(); n != there || err != nil {
			t.Fatalf("%d, %v; want %d", n, err, there)
		}
		buf := make([]byte, there)
		if _, err := g.ReadAt(buf, 0); err != nil || !bytes.Equal(buf, data[:there]) {
			t.Fatalf("other bytes, or %v", err)
		}
		if there < d.Size {
			if _, err := g.ReadAt(make([]byte, 1), there); err != io.ErrUnexpectedEOF {
				t.Fatalf("behind the end: %v", err)
			}
		}
	}
	want(0)
	waited := make(chan error, 1)
	go func() {
		w, err := reader.Growing(d)
		if err == nil {
			defer w.Close()
			err = w.Wait(t.Context(), 2500)
		}
		waited <- err
	}()
	p, err := writer.Partial(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	write := func(b []byte) {
		t.Helper()
		if _, err := p.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	want(0)
	write(data[:1000])
	want(1000)
	write(make([]byte, 2000)) // damage
	if n, err := g.There(); n != 3000 || err != nil {
		t.Fatal(n, err)
	}
	if err := p.Commit(t.Context()); err == nil {
		t.Fatal("damage was taken for the blob")
	}
	want(0)
	write(data[:2000])
	want(2000)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := g.Wait(ctx, 2001); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("wait: %v", err)
	}
	// Its process dies, and another goes on.
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	want(2000)
	if p, err = writer.Partial(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	write(data[2000:])
	if err := p.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	want(3000)
	if err := <-waited; err != nil { // it saw the damaged bytes, or these
		t.Error(err)
	}
	if err := g.Wait(t.Context(), 3000); err != nil {
		t.Error(err)
	}
	if err := g.Wait(t.Context(), 3001); err == nil {
		t.Error("more than there will ever be")
	}
	late, err := reader.Growing(d)
	if err != nil {
		t.Fatal(err)
	}
	defer late.Close()
	if err := late.Wait(t.Context(), 3000); err != nil {
		t.Error(err)
	}
	if _, err := reader.Growing(ocispec.Descriptor{Digest: "sha256:../../x", Size: 1}); err == nil {
		t.Error("a digest that is a path")
	}
}
