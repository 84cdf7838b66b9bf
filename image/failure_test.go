package image

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/format"
)

func TestPackErrors(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	r := rand.New(rand.NewPCG(6, 6))
	dir := fakeImages{maps: map[string]memory{"pagemap-1.img": randomMemory(r, 1<<30, 900)}}.write(t)
	broken := fakeImages{maps: map[string]memory{"pagemap-1.img": randomMemory(r, 1<<30, 9)}}.write(t)
	if err := os.Truncate(filepath.Join(broken, "pages-1.img"), 5*testPage); err != nil {
		t.Fatal(err)
	}
	odd := fakeImages{other: map[string][]byte{"a name": nil}}.write(t)
	full := func(int) error { return &os.PathError{Op: "write", Path: "blob", Err: syscall.ENOSPC} }
	tests := []struct {
		name  string
		src   PackSource
		o     PackOptions
		write func(int) error
		is    func(error) bool
	}{
		{"no directory", testSource(dir + "/none"), PackOptions{}, nil, func(err error) bool { return errors.Is(err, os.ErrNotExist) }},
		{"pages cut short", testSource(broken), PackOptions{}, nil, errdefs.IsDataLoss},
		{"odd name", testSource(odd), PackOptions{}, nil, errdefs.IsDataLoss},
		{"bad size", testSource(dir), PackOptions{SegmentSize: 3 << 20}, nil, errdefs.IsInvalidArgument},
		{"bad compression", testSource(dir), PackOptions{Compression: "lz4"}, nil, errdefs.IsInvalidArgument},
		{"disk full", testSource(dir), PackOptions{SegmentSize: 1 << 20}, full, func(err error) bool {
			return errors.Is(err, syscall.ENOSPC) && errdefs.IsResourceExhausted(err) && hinted(err)
		}},
		{"rootfs fails", PackSource{Images: dir, Config: testConfig, RootFS: func(context.Context, io.Writer) error { return boom }}, PackOptions{}, nil, func(err error) bool { return errors.Is(err, boom) }},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			store := newMemoryStore()
			store.write = test.write
			if _, err := Pack(context.Background(), store, test.src, test.o); err == nil || !test.is(err) {
				t.Errorf("Pack gives %v", err)
			}
			if store.open != 0 {
				t.Errorf("Pack left %d blobs open", store.open)
			}
		})
	}
}

// TestPackCancelled cancels at many points.
func TestPackCancelled(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(7, 7))
	dir := fakeImages{maps: map[string]memory{"pagemap-1.img": randomMemory(r, 1<<30, 4000)}}.write(t)
	for _, limit := range []int64{0, 1, 2, 3, 5, 8, 12} {
		ctx, cancel := context.WithCancel(context.Background())
		store := newMemoryStore()
		var writes atomic.Int64
		store.write = func(int) error {
			if writes.Add(1) > limit {
				cancel()
			}
			return nil
		}
		if _, err := Pack(ctx, store, testSource(dir), PackOptions{SegmentSize: 1 << 20, Workers: 3}); !errors.Is(err, context.Canceled) {
			t.Errorf("Pack cancelled after %d writes gives %v", limit, err)
		}
		if store.open != 0 {
			t.Errorf("Pack left %d blobs open", store.open)
		}
		cancel()
	}
}

func TestUnpackCancelled(t *testing.T) {
	t.Parallel()
	store, d := packedSample(t)
	s, err := Open(context.Background(), store, d)
	if err != nil {
		t.Fatal(err)
	}
	for _, limit := range []int64{0, 1, 2, 4} {
		ctx, cancel := context.WithCancel(context.Background())
		var calls atomic.Int64
		dir := filepath.Join(t.TempDir(), "images")
		err := s.Unpack(ctx, store, dir, UnpackOptions{Progress: func(string, int64, int64) {
			if calls.Add(1) > limit {
				cancel()
			}
		}})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("Unpack cancelled after %d frames gives %v", limit, err)
		}
		if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("Unpack left its directory: %v", err)
		}
		cancel()
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := Verify(ctx, store, d, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("Verify without time gives %v", err)
	}
}

func TestUnpackWhere(t *testing.T) {
	ctx := context.Background()
	store, d := packedSample(t)
	s, err := Open(ctx, store, d)
	if err != nil {
		t.Fatal(err)
	}
	t.Run("new directory", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "images")
		if err := s.Unpack(ctx, store, dir, UnpackOptions{}); err != nil {
			t.Fatal(err)
		}
		fi, _ := os.Stat(dir)
		if fi.Mode().Perm() != 0o700 {
			t.Errorf("the directory has mode %v", fi.Mode())
		}
		for name := range readDir(t, dir) {
			if fi, _ := os.Stat(filepath.Join(dir, name)); fi.Mode().Perm() != 0o600 {
				t.Errorf("%s has mode %v", name, fi.Mode())
			}
		}
		if fi, _ := os.Stat(filepath.Join(dir, format.PagesFileName(1))); fi.Sys().(*syscall.Stat_t).Blocks*512 >= fi.Size() {
			t.Error("zero pages take room")
		}
	})
	t.Run("in use", func(t *testing.T) {
		dir := t.TempDir()
		writeFile(t, filepath.Join(dir, "mine"), nil)
		if err := s.Unpack(ctx, store, dir, UnpackOptions{}); !errors.Is(err, os.ErrExist) {
			t.Errorf("Unpack gives %v", err)
		}
		if len(readDir(t, dir)) != 1 {
			t.Error("Unpack changed the directory")
		}
	})
	t.Run("full disk", func(t *testing.T) {
		if os.Getuid() != 0 && os.Getenv("CI") == "" {
			t.Skip("needs root to mount a small disk")
		}
		dir := t.TempDir()
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=400k"); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = unix.Unmount(dir, 0) }()
		err := s.Unpack(ctx, store, filepath.Join(dir, "images"), UnpackOptions{})
		if !errors.Is(err, syscall.ENOSPC) || !errdefs.IsResourceExhausted(err) || !hinted(err) {
			t.Errorf("Unpack gives %v", err)
		}
		if len(readDir(t, dir)) != 0 {
			t.Error("Unpack left something")
		}
	})
}

// TestUnpackPromptly says that cancelling is felt while a registry does not answer.
func TestUnpackPromptly(t *testing.T) {
	store, d := packedSample(t)
	s, err := Open(context.Background(), store, d)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	start := time.Now()
	err = Verify(ctx, slowFetcher{store, s.Segments()[0].Digest.String()}, d, nil)
	if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > 10*time.Second {
		t.Errorf("Verify gives %v after %v", err, time.Since(start))
	}
}
