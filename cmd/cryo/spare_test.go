package main

import (
	"context"
	"errors"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// TestBehindRoom: through the page cache goes what there are cores and memory for, beside what is restored.
func TestBehindRoom(t *testing.T) {
	const gib = 1 << 30
	for _, test := range []struct {
		cores             int
		available, pulled int64
		want              int64
	}{
		{2, 100 * gib, gib, 0},
		{7, 100 * gib, 2 * gib, 0},
		{8, 100 * gib, 2 * gib, 8 * gib},
		{16, 10 * gib, 2 * gib, 3 * gib},
		{16, 5 * gib, 2 * gib, 512 << 20},
		{16, 5*gib - 2, 2 * gib, 0},
		{16, 100 * gib, 64 * gib, 0},
	} {
		if got := behindRoom(test.cores, test.available, test.pulled); got != test.want {
			t.Errorf("%d cores, %d GiB available, %d GiB pulled: room for %d bytes, want %d", test.cores, test.available/gib, test.pulled/gib, got, test.want)
		}
	}
}

// TestIsQuick: a registry that takes its time is not quick, nor is one that fails.
func TestIsQuick(t *testing.T) {
	for name, test := range map[string]struct {
		err  error
		slow bool
		want bool
	}{"at once": {want: true}, "slow": {slow: true}, "fails": {err: errors.New("no")}} {
		read := func(ctx context.Context, d ocispec.Descriptor, off int64, p []byte, check func([]byte) error) error {
			if off != 0 || int64(len(p)) != min(d.Size, quickPart) {
				t.Errorf("%s: it reads %d bytes at %d of %d", name, len(p), off, d.Size)
			}
			if test.slow {
				<-ctx.Done()
				return context.Cause(ctx)
			}
			return test.err
		}
		for _, size := range []int64{1000, 1 << 30} {
			if got := isQuick(t.Context(), read, ocispec.Descriptor{Size: size}); got != test.want {
				t.Errorf("%s: %v", name, got)
			}
		}
	}
}
