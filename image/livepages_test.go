package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image/format"
)

// unpackLazily packs images of which CRIU says what is lazy, and unpacks the rest.
func unpackLazily(t *testing.T, r *rand.Rand) (store *fileStore, d ocispec.Descriptor, want, got string) {
	t.Helper()
	want = fakeImages{
		maps: map[string]memory{
			"pagemap-1.img":          randomMemory(r, 0x7f0000000000, 900),
			"pagemap-2.img":          randomMemory(r, 0x400000, 300),
			"pagemap-shmem-1048.img": randomMemory(r, 0, 100),
		},
		lazy:  func(pagemap string, addr uint64) bool { return pagemap != "pagemap-shmem-1048.img" && addr>>12%97 > 11 },
		other: map[string][]byte{"inventory.img": {1}},
	}.write(t)
	store = &fileStore{memoryStore: newMemoryStore(), dir: t.TempDir()}
	d = mustPack(t, store.memoryStore, testSource(want), PackOptions{})
	s, err := Open(t.Context(), store, d)
	if err != nil {
		t.Fatal(err)
	}
	got = filepath.Join(t.TempDir(), "images")
	if err := s.Unpack(t.Context(), store, got, UnpackOptions{Lazy: true}); err != nil {
		t.Fatal(err)
	}
	return store, d, want, got
}

// openReader opens what was unpacked lazily into dir, and a reader of it, until the test's end.
func openReader(t *testing.T, src Fetcher, d ocispec.Descriptor, dir string, wipe bool) (*Pages, *PagesReader) {
	t.Helper()
	live, err := OpenPages(t.Context(), src, d, dir, wipe)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(live.Close)
	reader, err := live.Reader()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(reader.Close)
	return live, reader
}

// TestLazy puts together what is unpacked and what is read later: each page is in exactly one of them.
func TestLazy(t *testing.T) {
	for seed := range uint64(5) {
		store, d, want, got := unpackLazily(t, rand.New(rand.NewPCG(seed, 5)))
		live, reader := openReader(t, store, d, got, false)
		for _, pid := range []int{1, 2, 3} {
			last := mergeLazy(t, live, reader, got, pid)
			if pid < 3 == (last == 0) {
				t.Errorf("process %d has lazy pages up to %#x", pid, last)
			}
		}
		sameDir(t, want, got)
	}
}

// mergeLazy writes the lazy pages of a process to where they are missing in dir, and returns the address of the last run.
func mergeLazy(t *testing.T, live *Pages, reader *PagesReader, dir string, pid int) (last uint64) {
	t.Helper()
	for _, part := range live.Lazy(pid) {
		raw, err := reader.Read(part)
		if err != nil {
			t.Fatal(err)
		}
		for _, run := range part.Runs {
			if run.Addr < last {
				t.Fatalf("%#x comes after %#x", run.Addr, last)
			}
			last = run.Addr
			merge(t, filepath.Join(dir, format.PagesFileName(run.File)), run.First, raw[:run.Count*testPage])
			raw = raw[run.Count*testPage:]
		}
		if len(raw) > 0 {
			t.Fatalf("%d bytes too many", len(raw))
		}
	}
	return last
}

// merge writes pages to where there must be zeros.
func merge(t *testing.T, name string, first int64, data []byte) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	there := make([]byte, len(data))
	if _, err := f.ReadAt(there, first*testPage); err != nil || !bytes.Equal(there, make([]byte, len(data))) {
		t.Fatalf("%s has page %d twice: %v", name, first, err)
	}
	if _, err := f.WriteAt(data, first*testPage); err != nil {
		t.Fatal(err)
	}
}

// TestLazyParent sees that CRIU finds, for each process, a dump before this one that has nothing, only where memory is lazy.
func TestLazyParent(t *testing.T) {
	store, d, _, got := unpackLazily(t, rand.New(rand.NewPCG(1, 5)))
	entries, err := os.ReadDir(filepath.Join(got, "parent"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
		if !format.IsPagemapName(e.Name()) {
			continue
		}
		f, err := os.Open(filepath.Join(got, "parent", e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		m, err := format.ReadPagemap(e.Name(), f, 4096)
		f.Close()
		if err != nil || m.Count != 0 || m.Pages != 1 {
			t.Errorf("%s: %+v, %v", e.Name(), m, err)
		}
	}
	if want := []string{"pagemap-1.img", "pagemap-2.img", "pages-1.img"}; !slices.Equal(names, want) {
		t.Errorf("there are %q, not %q", names, want)
	}
	s, err := Open(t.Context(), store, d)
	if err != nil {
		t.Fatal(err)
	}
	eager := filepath.Join(t.TempDir(), "images")
	if err := s.Unpack(t.Context(), store, eager, UnpackOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(filepath.Join(eager, "parent")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("all memory is there, and so is a parent: %v", err)
	}
}

// TestLazyDamage reads from a segment that was changed, or cut, when it was open.
func TestLazyDamage(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, path string){
		"flipped": func(t *testing.T, path string) {
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for i := range b {
				b[i] ^= 1
			}
			writeFile(t, path, b)
		},
		"cut": func(t *testing.T, path string) {
			if err := os.Truncate(path, 0); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			store, d, _, got := unpackLazily(t, rand.New(rand.NewPCG(1, 6)))
			live, reader := openReader(t, store, d, got, false)
			for _, s := range live.x.Segments {
				damage(t, store.path(fmt.Sprintf("%x", s.Digest)))
			}
			for _, part := range live.Lazy(1) {
				var hinted interface{ Hint() string }
				if _, err := reader.Read(part); !errdefs.IsDataLoss(err) || !errors.As(err, &hinted) {
					t.Fatalf("gives %v", err)
				}
			}
		})
	}
}

// TestForked has two processes with the same memory, and one with the same at other addresses.
func TestForked(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 6))
	own, moved := memory{}, memory{}
	var bytes int64
	for i := range uint64(600) {
		page := randomPage(r, 2)
		own[1<<30+i*testPage], moved[1<<31+i*testPage] = page, page
		bytes += testPage
	}
	for name, test := range map[string]struct {
		maps map[string]memory
		want int64
	}{
		"one":    {map[string]memory{"pagemap-1.img": own}, 0},
		"forked": {map[string]memory{"pagemap-1.img": own, "pagemap-2.img": own}, bytes},
		"alike":  {map[string]memory{"pagemap-1.img": own, "pagemap-2.img": moved}, 0},
	} {
		store := newMemoryStore()
		s, err := Open(t.Context(), store, mustPack(t, store, testSource(fakeImages{maps: test.maps}.write(t)), PackOptions{}))
		if err != nil {
			t.Fatal(err)
		}
		images, err := s.UnpackImages(t.Context(), store, filepath.Join(t.TempDir(), "images"))
		if err != nil {
			t.Fatal(err)
		}
		if n := images.Forked(); n != test.want {
			t.Errorf("%s: %d bytes", name, n)
		}
	}
}

// TestLazyArriving reads segments that are still coming: what is damaged is read once more, from where it comes from.
func TestLazyArriving(t *testing.T) {
	store, d, _, got := unpackLazily(t, rand.New(rand.NewPCG(1, 6)))
	for _, damaged := range []bool{false, true} {
		coming := &arrivingStore{fileStore: store, damaged: damaged}
		live, reader := openReader(t, coming, d, got, false)
		parts := live.Lazy(1)
		for _, part := range parts {
			if live.There(part) {
				t.Fatal("it is there already")
			}
			if _, err := reader.Read(part); errdefs.IsDataLoss(err) != damaged {
				t.Fatalf("damaged for good: %v, and it gives %v", damaged, err)
			}
		}
		want := len(parts)
		if damaged {
			want *= 3 // see Again
		}
		if coming.again != want {
			t.Errorf("%d times parts of %d were read again", coming.again, len(parts))
		}
		coming.there = 1 << 40
		if !live.There(parts[0]) {
			t.Error("it is not there")
		}
	}
}

// TestLazyTrusted: of segments that have come into the store meanwhile frames are not hashed, but for those of the parent.
func TestLazyTrusted(t *testing.T) {
	store, d, _, got := unpackLazily(t, rand.New(rand.NewPCG(1, 6)))
	for _, shared := range []int{0, 1 << 10} {
		live, err := OpenPages(t.Context(), &arrivingStore{fileStore: store, there: 1 << 40, stored: true}, d, got, false)
		if err != nil {
			t.Fatal(err)
		}
		defer live.Close()
		for i, s := range live.segments {
			if a, ok := s.(Arriving); ok && i < shared {
				live.segments[i] = unverified(a)
			}
		}
		reader, err := live.Reader()
		if err != nil {
			t.Fatal(err)
		}
		defer reader.Close()
		for i := range live.x.Frames {
			live.x.Frames[i].Digest[0] ^= 1
		}
		for _, part := range live.Lazy(1) {
			if _, err := reader.Read(part); (err != nil) != (shared > 0) {
				t.Fatalf("of the parent: %v, and it gives %v", shared > 0, err)
			}
			if !live.There(part) {
				t.Error("it is not there")
			}
		}
		for i := range live.x.Frames {
			live.x.Frames[i].Check ^= 1
		}
		if _, err := reader.Read(live.Lazy(1)[0]); !errdefs.IsDataLoss(err) {
			t.Errorf("with another check it gives %v", err)
		}
	}
}

// aheadSegment counts what is read ahead of it.
type aheadSegment struct {
	segmentAt
	ahead int64
}

func (s *aheadSegment) ReadAhead(_ context.Context, n int64) { s.ahead += n }

// TestReadAhead: what is read first is read ahead, up to a limit, and nothing of segments that are not here.
func TestReadAhead(t *testing.T) {
	store, d, _, dir := unpackLazily(t, rand.New(rand.NewPCG(3, 7)))
	live, _ := openReader(t, store, d, dir, false)
	live.ReadAhead(t.Context(), 1<<40) // of files that cannot
	size := live.x.Segments[0].Size
	one, other := &aheadSegment{segmentAt: live.segments[0]}, &aheadSegment{segmentAt: live.segments[0]}
	live.x.Segments = append(live.x.Segments[:1:1], live.x.Segments[0], live.x.Segments[0])
	live.segments = []segmentAt{one, nil, other}
	live.ReadAhead(t.Context(), size+5)
	if one.ahead != size || other.ahead != 5 {
		t.Errorf("of segments of %d bytes %d and %d are read ahead, want %d and 5", size, one.ahead, other.ahead, size)
	}
	live.segments = live.segments[:1] // the other two are one
}

// arrivingStore has segments that are coming, which are damaged at first or for good.
type arrivingStore struct {
	*fileStore
	damaged bool
	there   int64
	again   int  // reads
	stored  bool // the segments have come, verified
}

func (s *arrivingStore) Fetch(ctx context.Context, d ocispec.Descriptor) (io.ReadCloser, error) {
	rc, err := s.fileStore.Fetch(ctx, d)
	if f, ok := rc.(*os.File); ok && err == nil && d.MediaType == MediaTypeSegment {
		if s.stored {
			return &storedFile{arrivingFile{f, s}, format.NewVerified(format.NewDirectReader(f))}, nil
		}
		return &arrivingFile{f, s}, nil
	}
	return rc, err
}

type arrivingFile struct {
	*os.File
	store *arrivingStore
}

type storedFile struct {
	arrivingFile
	verified format.Verified
}

func (f *storedFile) Verified() (format.Verified, bool) { return f.verified, true }

func (f *storedFile) Close() error { return f.verified.Close() }

func (f *storedFile) ReadAt(p []byte, off int64) (int, error) { return f.File.ReadAt(p, off) }

func (f *arrivingFile) There(end int64) bool { return end <= f.store.there }

func (f *arrivingFile) ReadAt(p []byte, off int64) (int, error) {
	n, err := f.File.ReadAt(p, off)
	p[0] ^= 1
	return n, err
}

func (f *arrivingFile) ReadAhead(p []byte, off int64) (int, error) { return f.ReadAt(p, off) }

func (f *arrivingFile) Again(tries int, err error) bool { return err != nil && tries < 3 }

func (f *arrivingFile) ReadAgain(p []byte, off int64) (int, error) {
	f.store.again++
	if f.store.damaged {
		return f.ReadAt(p, off)
	}
	return f.File.ReadAt(p, off)
}

// TestChoose compares with a table of pages.
func TestChoose(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 7))
		var runs []format.Run
		var lazy []format.PageRun
		is := map[int64]bool{}
		for first := int64(0); first < 60; {
			n := 1 + r.Int64N(9)
			if r.IntN(3) > 0 {
				runs = append(runs, format.Run{First: first, Count: n, Addr: uint64(first * testPage)})
			}
			first += n
		}
		for first := r.Int64N(5); first < 60; {
			n := 1 + r.Int64N(9)
			lazy = append(lazy, format.PageRun{First: first, Count: n, Addr: uint64(first * testPage)})
			for i := range n {
				is[first+i] = true
			}
			first += n + 1 + r.Int64N(9)
		}
		for _, want := range []bool{true, false} {
			got := map[int64]bool{}
			for _, run := range choose(runs, lazy, testPage, want) {
				for i := range run.Count {
					got[run.First+i] = run.Addr == uint64(run.First*testPage)
				}
			}
			for _, run := range runs {
				for i := range run.Count {
					if page := run.First + i; got[page] != (is[page] == want) {
						t.Fatalf("seed %d, lazy %v: page %d is chosen: %v", seed, want, page, got[page])
					}
					delete(got, run.First+i)
				}
			}
			if len(got) > 0 {
				t.Fatalf("seed %d: %v were made up", seed, got)
			}
		}
	}
}

// fileStore has its blobs in files.
type fileStore struct {
	*memoryStore
	dir string
}

func (s *fileStore) path(hex string) string { return filepath.Join(s.dir, hex) }

func (s *fileStore) Fetch(_ context.Context, d ocispec.Descriptor) (io.ReadCloser, error) {
	path := s.path(d.Digest.Encoded())
	if _, err := os.Stat(path); err != nil {
		s.mu.Lock()
		b := s.blobs[d.Digest]
		s.mu.Unlock()
		if err := os.WriteFile(path, b, 0o600); err != nil {
			return nil, err
		}
	}
	return os.Open(path)
}
