package store_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/format"
	"github.com/cryo-project/cryo/integration/storetest"
)

// TestCache: what was dropped from the page cache is there again.
func TestCache(t *testing.T) {
	s := storetest.Open(t)
	content := storetest.Bytes(1, 3<<20+5)
	d := ocispec.Descriptor{MediaType: "x", Digest: digest.FromBytes(content), Size: int64(len(content))}
	if err := s.Push(t.Context(), d, bytes.NewReader(content)); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(filepath.Join(s.Layout(), "blobs/sha256", d.Digest.Encoded()))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
	var read int64
	if err := s.Cache(t.Context(), []ocispec.Descriptor{d}, func(_ string, done, total int64) { read = max(read, done) }); err != nil || read != d.Size {
		t.Errorf("%d bytes are read, %v", read, err)
	}
	if cached, total, err := format.CachedPages(f, 0, d.Size); cached != total {
		t.Errorf("%d of %d pages are in the page cache, %v", cached, total, err)
	}
	missing := ocispec.Descriptor{MediaType: "x", Digest: digest.FromString("none"), Size: 4}
	if err := s.Cache(t.Context(), []ocispec.Descriptor{missing}, nil); !errdefs.IsNotFound(err) {
		t.Errorf("a blob that is not there: %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("enough")
	cancel(reason)
	if err := s.Cache(ctx, []ocispec.Descriptor{d}, nil); !errors.Is(err, reason) {
		t.Errorf("ended: %v", err)
	}
}
