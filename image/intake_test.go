package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/format"
)

// stream sends the pages of the images in dir as CRIU would, in pieces of random length, with the pagemaps in random order.
func stream(t testing.TB, in *Intake, dir string, r *rand.Rand) error {
	t.Helper()
	list, err := format.ReadPagemapDir(dir, testPage)
	if err != nil {
		t.Fatal(err)
	}
	r.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	for _, m := range list {
		f, err := os.Open(filepath.Join(dir, format.PagesFileName(m.Pages)))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := in.Begin(uint32(m.Pages)); err != nil {
			return err
		}
		for _, run := range m.Runs {
			for run.Count > 0 {
				n := min(run.Count, 1+r.Int64N(400))
				if err := in.Pages(run.Addr, uint64(n), iotest.HalfReader(io.NewSectionReader(f, run.First*testPage, n*testPage))); err != nil {
					return err
				}
				run.Addr, run.First, run.Count = run.Addr+uint64(n*testPage), run.First+n, run.Count-n
			}
		}
	}
	return in.End()
}

// withoutPages copies a directory of images but for its pages files.
func withoutPages(t testing.TB, dir string) string {
	t.Helper()
	out := t.TempDir()
	for name, b := range readDir(t, dir) {
		if !format.IsPagesFileName(name) {
			writeFile(t, filepath.Join(out, name), b)
		}
	}
	return out
}

func newIntake(t testing.TB, dst BlobStore, o PackOptions) *Intake {
	t.Helper()
	in, err := NewIntake(context.Background(), dst, t.TempDir(), testPage, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(in.Close)
	return in
}

// limitMemory has an intake keep no more than so many pieces in memory.
func limitMemory(t testing.TB, in *Intake, pieces int) {
	t.Helper()
	in.memory.release()
	var err error
	if in.memory, err = newSlots(pieces); err != nil {
		t.Fatal(err)
	}
}

// TestIntakeEqualsFiles: memory that was streamed makes the snapshot that its files make.
func TestIntakeEqualsFiles(t *testing.T) {
	t.Parallel()
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 3))
			f := fakeImages{maps: map[string]memory{}, other: map[string][]byte{"inventory.img": {1, 2}}}
			for i := range 1 + r.IntN(12) {
				f.maps[fmt.Sprintf("pagemap-%d.img", i+1)] = randomMemory(r, 0x400000+r.Uint64N(1<<40)&^(testPage-1), r.IntN(500))
			}
			f.maps["pagemap-shmem-1048.img"] = randomMemory(r, 0, r.IntN(600))
			dir := f.write(t)
			o := PackOptions{SegmentSize: 1 << (20 + r.IntN(6)), Workers: 1 + r.IntN(5)}
			if r.IntN(3) == 0 {
				o.Compression = "none"
			}
			want := mustPack(t, newMemoryStore(), testSource(dir), o)

			store := newMemoryStore()
			in := newIntake(t, store, o)
			if seed%2 > 0 { // hardly anything finds a place in memory, or on the disk
				limitMemory(t, in, 1+r.IntN(5))
				in.spill.room = int64(r.IntN(4)) << 22
			}
			if err := stream(t, in, dir, r); err != nil {
				t.Fatal(err)
			}
			src := testSource(withoutPages(t, dir))
			src.Memory = in
			got := mustPack(t, store, src, PackOptions{})
			if got.Digest != want.Digest {
				t.Errorf("the stream gives %s, the files %s", got.Digest, want.Digest)
			}
			s, err := Open(context.Background(), store, got)
			if err != nil {
				t.Fatal(err)
			}
			out := filepath.Join(t.TempDir(), "images")
			if err := s.Unpack(context.Background(), store, out, UnpackOptions{}); err != nil {
				t.Fatal(err)
			}
			sameDir(t, dir, out)
			in.Close()
			if store.open != 0 {
				t.Errorf("%d blobs are open", store.open)
			}
		})
	}
}

// TestIntakeRefuses: what is not in CRIU's order, or not whole, makes no snapshot.
func TestIntakeRefuses(t *testing.T) {
	page := bytes.NewReader(make([]byte, 1<<20))
	for name, calls := range map[string]func(in *Intake) error{
		"not aligned":  func(in *Intake) error { return in.Pages(0x1800, 1, page) },
		"descending":   func(in *Intake) error { return errors.Join(in.Pages(0x9000, 1, page), in.Pages(0x8000, 1, page)) },
		"overlapping":  func(in *Intake) error { return errors.Join(in.Pages(0x8000, 2, page), in.Pages(0x9000, 1, page)) },
		"too many":     func(in *Intake) error { return in.Pages(0x8000, 1<<60, page) },
		"out of space": func(in *Intake) error { return in.Pages(1<<57, 1, page) },
	} {
		in := newIntake(t, newMemoryStore(), PackOptions{})
		if err := in.Begin(1); err != nil {
			t.Fatal(err)
		}
		if err := calls(in); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s gives %v", name, err)
		}
		if err := in.End(); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: the end gives %v", name, err)
		}
	}
	in := newIntake(t, newMemoryStore(), PackOptions{})
	if err := errors.Join(in.Begin(1), in.Pages(0x8000, 3, bytes.NewReader(make([]byte, 5000)))); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a cut stream gives %v", err)
	}
	src := testSource(withoutPages(t, SampleImages(t)))
	src.Memory = in
	in.Close()
	if _, err := Pack(context.Background(), newMemoryStore(), src, PackOptions{}); err == nil {
		t.Error("a cut stream makes a snapshot")
	}
}

// TestIntakeMissing: memory that the pagemaps know and the stream had not makes no snapshot.
func TestIntakeMissing(t *testing.T) {
	dir := SampleImages(t)
	store := newMemoryStore()
	in := newIntake(t, store, PackOptions{})
	if err := in.End(); err != nil {
		t.Fatal(err)
	}
	src := testSource(withoutPages(t, dir))
	src.Memory = in
	if d, err := Pack(context.Background(), store, src, PackOptions{}); !errdefs.IsInternal(err) {
		t.Errorf("got %s, %v", d.Digest, err)
	}
}

// TestIntakeFullDisk: the stream hears of it while it goes on, and nothing is left open.
func TestIntakeFullDisk(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(2, 9))
	dir := fakeImages{maps: map[string]memory{"pagemap-1.img": randomMemory(r, 1<<30, 5000)}}.write(t)
	store := newMemoryStore()
	var written atomic.Int64
	store.write = func(n int) error {
		if written.Add(int64(n)) > 2<<20 {
			return fmt.Errorf("write: %w", syscall.ENOSPC)
		}
		return nil
	}
	in := newIntake(t, store, PackOptions{SegmentSize: 64 << 20, Workers: 2})
	err := stream(t, in, dir, r)
	if err == nil {
		src := testSource(withoutPages(t, dir))
		src.Memory = in
		_, err = Pack(context.Background(), store, src, PackOptions{})
	}
	if !errdefs.IsResourceExhausted(err) || !hinted(err) {
		t.Errorf("got %v", err)
	}
	in.Close()
	if store.open != 0 {
		t.Errorf("%d blobs are open", store.open)
	}
}

// slowStore writes nothing before it is told to.
type slowStore struct {
	*memoryStore
	gate chan struct{}
}

func (s slowStore) Create(ctx context.Context) (BlobWriter, error) {
	select {
	case <-s.gate:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return s.memoryStore.Create(ctx)
}

// TestIntakeHoldsTheDumpUp: a store that does not write stops the stream when the slots are used up, and it can be cancelled.
func TestIntakeHoldsTheDumpUp(t *testing.T) {
	store := slowStore{newMemoryStore(), make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	in, err := NewIntake(ctx, store, t.TempDir(), testPage, PackOptions{SegmentSize: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	limitMemory(t, in, 2*intakeAside)
	in.spill.room = 3 << 20
	sent := make(chan error, 1)
	go func() {
		if err := in.Begin(1); err != nil {
			sent <- err
			return
		}
		sent <- in.Pages(1<<30, 1<<20, endless{})
	}()
	for in.received.Load() < int64(cap(in.memory.free))<<20 {
		time.Sleep(time.Millisecond)
	}
	select {
	case err := <-sent:
		t.Fatalf("the stream ended: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	// In memory, on its way to the spill, there, and back from it; and of each window what is kept before it is a segment.
	most := int64(2*intakeAside + 3 + 2*in.o.Workers + 2)
	most += 4 * (most<<20/in.o.SegmentSize + 1)
	if got := in.received.Load(); got > most<<20 {
		t.Errorf("%d bytes were taken in, %d MiB are the most", got, most)
	}
	cancel()
	if err := <-sent; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// endless is memory that holds no zeros.
type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 1
	}
	return len(p), nil
}

// TestIntakeDropsZeros: pages of zeros wait for nothing, not even where nobody encodes and the disk has no room. Behind a piece that waits they keep no
// place that others need.
func TestIntakeDropsZeros(t *testing.T) {
	t.Parallel()
	t.Run("alone", func(t *testing.T) { takeZeros(t, func([]byte) {}) })
	t.Run("behind others", func(t *testing.T) {
		takeZeros(t, func(memory []byte) {
			for i := 0; i < len(memory); i += 16 * format.MaxFrame {
				memory[i] = 1
			}
		})
	})
}

func takeZeros(t *testing.T, but func(memory []byte)) {
	t.Helper()
	in := newIntake(t, newMemoryStore(), PackOptions{Workers: 1})
	in.spill.room = 0
	if err := in.Begin(1); err != nil {
		t.Fatal(err)
	}
	limitMemory(t, in, 2*intakeAside)
	pages := uint64(4 * intakeAside * format.MaxFrame / testPage)
	memory := make([]byte, pages*testPage)
	but(memory)
	held := time.AfterFunc(10*time.Second, func() { in.cancel(nil) })
	defer held.Stop()
	if err := in.Pages(1<<32, pages, bytes.NewReader(memory)); err != nil {
		t.Fatal(err)
	}
	if err := in.End(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-in.hurried:
		t.Error("the stream was held up")
	default:
	}
	if n := in.spill.end.Load(); n != 0 {
		t.Errorf("%d bytes went to the disk", n)
	}
}
