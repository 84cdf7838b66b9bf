package format

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

var (
	_ io.ReaderAt       = (*DirectFile)(nil)
	_ io.WriterAt       = (*DirectFile)(nil)
	_ io.ReadSeekCloser = (*DirectReader)(nil)
)

func random(n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(b)
	return b
}

func create(t testing.TB) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// drop throws a file out of the page cache.
func drop(t *testing.T, f *os.File) {
	t.Helper()
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
}

// both runs a test with O_DIRECT, where the file system has it, and without.
func both(t *testing.T, test func(t *testing.T, f *DirectFile)) {
	t.Helper()
	for _, refused := range []bool{false, true} {
		t.Run(map[bool]string{false: "direct", true: "refused"}[refused], func(t *testing.T) {
			f := NewDirectFile(create(t))
			f.refused.Store(refused)
			defer f.Close()
			test(t, f)
		})
	}
}

// TestWriter: whatever the lengths and places in memory of what is written, the file and the sum have all of it in its order.
func TestWriter(t *testing.T) {
	data := random(9*DirectPiece + 12345)
	both(t, func(t *testing.T, f *DirectFile) {
		for seed := range uint64(12) {
			if err := f.f.Truncate(0); err != nil {
				t.Fatal(err)
			}
			r := rand.New(rand.NewPCG(seed, 1))
			sum := sha256.New()
			w := NewDirectWriter(f, 0, sum)
			memory := AllocDirect(3 * DirectPiece)
			want := data[:r.IntN(len(data))]
			if seed == 0 {
				want = nil
			}
			for rest := want; len(rest) > 0; {
				n := 1 + r.IntN(2*DirectPiece)
				if r.IntN(2) == 0 {
					n = DirectAlign * (1 + r.IntN(512))
				}
				at := DirectAlign * r.IntN(3)
				if r.IntN(3) == 0 {
					at++
				}
				p := memory[at : at+min(n, len(rest))]
				copy(p, rest)
				if n, err := w.Write(p); n != len(p) || err != nil {
					t.Fatal(n, err)
				}
				rest = rest[len(p):]
				clear(p) // it is the caller's again
			}
			if err := w.Flush(); err != nil {
				t.Fatal(err)
			}
			w.Stop()
			got, err := os.ReadFile(f.f.Name())
			if err != nil || !bytes.Equal(got, want) {
				t.Fatalf("seed %d: %d bytes of %d, %v", seed, len(got), len(want), err)
			}
			if [32]byte(sum.Sum(nil)) != sha256.Sum256(want) {
				t.Fatalf("seed %d: another sum", seed)
			}
		}
	})
}

// TestReadAt: reads of all alignments, in the page cache and not, up to the end of the file and behind it.
func TestReadAt(t *testing.T) {
	for _, size := range []int{3*DirectPiece + 777, 3 * DirectPiece} {
		data := random(size)
		both(t, func(t *testing.T, f *DirectFile) {
			if _, err := f.f.Write(data); err != nil {
				t.Fatal(err)
			}
			r := rand.New(rand.NewPCG(1, 1))
			memory := AllocDirect(4 * DirectPiece)
			for n := range 100 {
				if n%3 == 0 {
					drop(t, f.f)
				}
				off, length, at := r.IntN(size+5000), r.IntN(3*DirectPiece), r.IntN(DirectAlign)
				if r.IntN(2) == 0 {
					off, at = down(off), 0
				}
				if r.IntN(2) == 0 {
					length = down(length)
				}
				p := memory[at : at+length]
				clear(p)
				got, err := f.ReadAt(p, int64(off))
				want := data[min(off, size):min(off+length, size)]
				if got != len(want) || !bytes.Equal(p[:got], want) || len(want) < length && err != io.EOF || len(want) == length && err != nil {
					t.Fatalf("%d bytes at %d: %d bytes, %v", length, off, got, err)
				}
				if !bytes.Equal(p[got:], make([]byte, length-got)) && length-got > 0 && at == 0 && off+length <= size {
					t.Fatal("bytes were written behind what was read")
				}
			}
		})
	}
}

// TestWriteAt: parts past the page cache and parts in it make one file.
func TestWriteAt(t *testing.T) {
	data := random(4*DirectPiece + 99)
	both(t, func(t *testing.T, f *DirectFile) {
		r := rand.New(rand.NewPCG(2, 1))
		memory := AllocDirect(2 * DirectPiece)
		for off := 0; off < len(data); {
			n := min(1+r.IntN(DirectPiece), len(data)-off)
			if off%DirectAlign != 0 && r.IntN(2) == 0 {
				n = min(DirectAlign-off%DirectAlign, len(data)-off)
			}
			p := memory[:n]
			copy(p, data[off:])
			if got, err := f.WriteAt(p, int64(off)); got != n || err != nil {
				t.Fatal(got, err)
			}
			off += n
			if i, err := f.f.Stat(); err != nil || i.Size() != int64(off) {
				t.Fatalf("%d bytes of %d: %v", i.Size(), off, err) // whoever reads what grows believes the length
			}
		}
		got, err := os.ReadFile(f.f.Name())
		if err != nil || !bytes.Equal(got, data) {
			t.Fatalf("%d bytes, %v", len(got), err)
		}
	})
}

// TestReader: in steps of any length, after a seek as well.
func TestReader(t *testing.T) {
	data := random(5*DirectPiece + 321)
	f := create(t)
	if _, err := f.Write(data); err != nil {
		t.Fatal(err)
	}
	rd := NewDirectReader(f)
	defer rd.Close()
	r := rand.New(rand.NewPCG(3, 1))
	for n := range 20 {
		if n%2 == 0 {
			drop(t, f)
		}
		from := r.Int64N(int64(len(data)))
		if n == 0 {
			from = 0
		}
		if at, err := rd.Seek(from, io.SeekStart); at != from || err != nil {
			t.Fatal(at, err)
		}
		var got []byte
		for {
			p := make([]byte, 1+r.IntN(1<<(1+r.IntN(21))))
			n, err := rd.Read(p)
			got = append(got, p[:n]...)
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if skip := r.Int64N(1000); n%7 == 0 && from+int64(len(got))+skip < int64(len(data)) {
				if _, err := rd.Seek(skip, io.SeekCurrent); err != nil {
					t.Fatal(err)
				}
				got = append(got, data[from+int64(len(got)):][:skip]...)
			}
		}
		if !bytes.Equal(got, data[from:]) {
			t.Fatalf("from %d: %d bytes of %d", from, len(got), len(data[from:]))
		}
	}
	if at, err := rd.Seek(-1, io.SeekEnd); at != int64(len(data))-1 || err != nil {
		t.Fatal(at, err)
	}
	if _, err := rd.Seek(-1, io.SeekStart); err == nil {
		t.Fatal("before the begin of the file")
	}
}

// TestCached: what was written is there, what was dropped is not, and what is written past the page cache does not come into it.
func TestCached(t *testing.T) {
	testCached(t)
	defer noCachestat.Store(noCachestat.Swap(true))
	t.Run("mincore", testCached)
}

func testCached(t *testing.T) {
	f := NewDirectFile(create(t))
	defer f.Close()
	p := AllocDirect(2 * DirectPiece)
	if _, err := f.f.Write(p); err != nil {
		t.Fatal(err)
	}
	if !f.Cached(0, 2*DirectPiece) || !f.Cached(5, 100) {
		t.Fatal("what was just written is not there")
	}
	if f.Cached(DirectPiece, 2*DirectPiece) {
		t.Fatal("what is behind the end is there")
	}
	drop(t, f.f)
	memory := f.Cached(0, 2*DirectPiece) // a file system that keeps all files there
	if _, err := f.ReadAt(p, 0); err != nil {
		t.Fatal(err)
	}
	if !memory && f.past() != nil && (f.Cached(0, DirectAlign) || f.Cached(DirectPiece, DirectAlign)) {
		t.Fatal("reading went by way of the page cache")
	}
}

// TestCachedEitherWay: what kernels before 6.5 are asked says the same.
func TestCachedEitherWay(t *testing.T) {
	f := NewDirectFile(create(t))
	defer f.Close()
	const size = 64 * DirectAlign
	if _, err := f.f.Write(make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	same := func() {
		t.Helper()
		r := rand.New(rand.NewPCG(1, 1))
		for range 1000 {
			off := r.Int64N(size + DirectAlign)
			n := 1 + r.Int64N(size)
			c, all, err := CachedPages(f.f, off, n)
			if other, total, otherwise := inCore(f.f, off, n); c != other || all != total || err != nil || otherwise != nil {
				t.Fatalf("%d bytes from %d on: %d of %d, %v, and %d of %d, %v", n, off, c, all, err, other, total, otherwise)
			}
		}
	}
	same()
	drop(t, f.f)
	same()
	if err := unix.Fadvise(int(f.f.Fd()), 0, 0, unix.FADV_RANDOM); err != nil { // nothing is read ahead
		t.Fatal(err)
	}
	for _, page := range []int64{0, 3, 4, 5, 30, 63} {
		if _, err := f.f.ReadAt(make([]byte, 1), page*DirectAlign); err != nil {
			t.Fatal(err)
		}
	}
	same()
}

// BenchmarkCached asks for a MiB from as many goroutines as there are cores.
func BenchmarkCached(b *testing.B) {
	file, err := os.Create(filepath.Join(b.TempDir(), "file"))
	if err != nil {
		b.Fatal(err)
	}
	f := NewDirectFile(file)
	defer f.Close()
	if _, err := file.Write(make([]byte, 64*DirectPiece)); err != nil {
		b.Fatal(err)
	}
	for name, cached := range map[string]func(f *os.File, off, n int64) (uint64, uint64, error){"cachestat": CachedPages, "mincore": inCore} {
		b.Run(name, func(b *testing.B) {
			b.RunParallel(func(pb *testing.PB) {
				for n := int64(0); pb.Next(); n++ {
					if c, total, err := cached(file, n%64*DirectPiece, DirectPiece); c != total || err != nil {
						b.Errorf("%d of %d pages are there, %v", c, total, err)
					}
				}
			})
		})
	}
}

// TestWriterFails: an error comes up at the latest with Flush, and with all calls after it.
func TestWriterFails(t *testing.T) {
	f := create(t)
	f.Close()
	read, err := os.Open(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	file := NewDirectFile(read) // which cannot be written
	defer file.Close()
	w := NewDirectWriter(file, 0, io.Discard)
	defer w.Stop()
	if _, err := w.Write(make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(); !errors.Is(err, unix.EBADF) {
		t.Fatal(err)
	}
	if n, err := w.Write(AllocDirect(DirectPiece)); n != 0 || !errors.Is(err, unix.EBADF) {
		t.Fatal(n, err)
	}
	if err := w.Flush(); !errors.Is(err, unix.EBADF) {
		t.Fatal(err)
	}
}

// TestReadAhead: the first bytes are in the page cache afterwards, all of them. Nothing comes when nobody wants it any more.
func TestReadAhead(t *testing.T) {
	const size, first = 2*aheadQueue + 3*aheadStep, aheadQueue + 3*aheadStep + DirectAlign
	f := NewDirectFile(create(t))
	defer f.Close()
	if _, err := f.f.Write(make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	drop(t, f.f)
	memory := f.Cached(0, size) // a file system that keeps all files there
	over, cancel := context.WithCancel(t.Context())
	cancel()
	f.ReadAhead(over, size)
	if !memory && f.Cached(0, DirectAlign) {
		t.Error("something came that nobody wants")
	}
	f.ReadAhead(t.Context(), first)
	if _, err := f.f.ReadAt(make([]byte, 1), first-1); err != nil { // what was asked for last may be on its way
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); !f.Cached(0, first); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not all came")
		}
	}
	if !memory && f.Cached(first, size-first) {
		t.Error("more came than was wanted")
	}
}
