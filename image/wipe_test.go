package image

import (
	"maps"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/mm"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/vma"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/cryo-project/cryo/image/format"
)

// TestWipe unpacks a process with memory that fork wipes, at once and lazily. Zeros are there, and all else is as it was. Without Wipe all of it is.
func TestWipe(t *testing.T) {
	const base, magicMM = 0x7f0000000000, 0x57492820
	regions := []struct{ from, to, advice uint64 }{ // pages
		{1500, 3000, 1<<unix.MADV_WIPEONFORK | 1<<unix.MADV_DONTDUMP}, {3, 5, 1 << unix.MADV_WIPEONFORK}, {200, 900, 1 << unix.MADV_WIPEONFORK}, {5, 200, 1 << unix.MADV_DONTFORK},
	}
	entry := &mm.MmEntry{}
	for _, r := range regions {
		entry.Vmas = append(entry.Vmas, &vma.VmaEntry{Start: proto.Uint64(base + r.from*testPage), End: proto.Uint64(base + r.to*testPage), Madv: &r.advice})
	}
	record, err := proto.MarshalOptions{AllowPartial: true}.Marshal(entry)
	if err != nil {
		t.Fatal(err)
	}
	for seed := range uint64(3) {
		r := rand.New(rand.NewPCG(seed, 5))
		images := fakeImages{
			maps:  map[string]memory{"pagemap-1.img": randomMemory(r, base, 2000), "pagemap-2.img": randomMemory(r, base, 300), "pagemap-shmem-1.img": randomMemory(r, 0, 50)},
			lazy:  func(pagemap string, addr uint64) bool { return pagemap != "pagemap-shmem-1.img" && addr>>12%97 > 11 },
			other: map[string][]byte{"inventory.img": {1}, "mm-1.img": format.AppendRecord(format.ImageHead(magicMM), record)},
		}
		whole := images.write(t)
		wiped, n := maps.Clone(images.maps["pagemap-1.img"]), 0
		for addr := range wiped {
			for _, r := range regions {
				if page := (addr - base) / testPage; r.advice&(1<<unix.MADV_WIPEONFORK) != 0 && page >= r.from && page < r.to {
					wiped[addr] = make([]byte, testPage)
					n++
				}
			}
		}
		if n == 0 || n == len(wiped) {
			t.Fatalf("%d of %d pages are to be wiped", n, len(wiped))
		}
		images.maps["pagemap-1.img"] = wiped
		for wipe, want := range map[bool]string{false: whole, true: images.write(t)} {
			unpackedAs(t, whole, want, UnpackOptions{Wipe: wipe})
			unpackedAs(t, whole, want, UnpackOptions{Wipe: wipe, Lazy: true})
		}
	}
}

// unpackedAs packs images, and wants that they are others when they are unpacked, where what is read lazily is merged in.
func unpackedAs(t *testing.T, images, want string, o UnpackOptions) {
	t.Helper()
	store := &fileStore{memoryStore: newMemoryStore(), dir: t.TempDir()}
	d := mustPack(t, store.memoryStore, testSource(images), PackOptions{})
	s, err := Open(t.Context(), store, d)
	if err != nil {
		t.Fatal(err)
	}
	got := filepath.Join(t.TempDir(), "images")
	if err := s.Unpack(t.Context(), store, got, o); err != nil {
		t.Fatal(err)
	}
	if o.Lazy {
		live, reader := openReader(t, store, d, got, o.Wipe)
		for pid := range 3 {
			mergeLazy(t, live, reader, got, pid)
		}
	}
	sameDir(t, want, got)
}
