package image

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
	"testing/iotest"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/mm"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/vma"
	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/cryo-project/cryo/image/pages"
)

// simulated is a process as its kernel knows it. Tracking tells what was written to since it was last asked, and takes what was mapped
// since for written.
type simulated struct {
	pages   memory
	dirty   map[uint64]bool
	locked  bool            // none of its memory is restored lazily
	border  bool            // a thread stands at the border of a page: CRIU takes what it sends for a stack, and none of that is restored lazily
	content map[uint64]bool // of pages: the last round had it as lazy
}

func newSimulated() *simulated {
	return &simulated{pages: memory{}, dirty: map[uint64]bool{}, content: map[uint64]bool{}}
}

const simulatedBase, simulatedSpan = 0x7f0000000000, 3000

// live goes on for a while: it writes, maps and unmaps.
func (p *simulated) live(r *rand.Rand) {
	for range r.IntN(40) {
		addr := simulatedBase + uint64(r.IntN(simulatedSpan))*testPage
		n := 1 + r.IntN(1<<r.IntN(9))
		for i := range n {
			a := addr + uint64(i)*testPage
			switch {
			case n%3 == 0: // unmapped
				delete(p.pages, a)
				delete(p.dirty, a)
			case n%3 == 1 || p.pages[a] != nil: // mapped, or written to
				p.pages[a] = randomPage(r, r.IntN(4))
				p.dirty[a] = true
			}
		}
	}
	p.locked = r.IntN(8) == 0
	p.border = r.IntN(4) == 0
}

// lazy is what CRIU would say of pages that it sends.
func (p *simulated) lazy() bool { return !p.locked && !p.border }

// mappings is what CRIU knows of it beside its memory.
func (p *simulated) mappings(t testing.TB) []byte {
	t.Helper()
	flags := uint32(unix.MAP_PRIVATE | unix.MAP_ANONYMOUS)
	if p.locked {
		flags |= unix.MAP_LOCKED
	}
	b, err := (proto.MarshalOptions{AllowPartial: true}).Marshal(&mm.MmEntry{Vmas: []*vma.VmaEntry{{
		Start: proto.Uint64(simulatedBase), End: proto.Uint64(simulatedBase + 2*simulatedSpan*testPage), Flags: &flags, Status: proto.Uint32(1),
	}}})
	if err != nil {
		t.Fatal(err)
	}
	return appendRecord(imageHeader(0x57492820), b)
}

// send sends a round, or the dump, as CRIU does, and gives the pagemaps that CRIU's page server would write.
func send(rounds *Rounds, all map[string]*simulated, r *rand.Rand) (pagemaps map[string][]byte, files map[string]uint32, err error) {
	pagemaps, files = make(map[string][]byte), make(map[string]uint32)
	names := slices.Sorted(maps.Keys(all))
	r.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	for i, name := range names {
		p, file := all[name], uint32(i+1)
		files[name] = file
		b := appendRecord(imageHeader(0x56084025), protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), uint64(file)))
		has := rounds.Has(name)
		if err := rounds.Begin(name, file); err != nil {
			return nil, nil, err
		}
		addrs := slices.Sorted(maps.Keys(p.pages))
		for len(addrs) > 0 {
			kind := func(a uint64) uint64 {
				switch {
				case has && !p.dirty[a]:
					return 1
				case p.lazy():
					return 4 | 2
				}
				return 4
			}
			n, flags, content := 0, kind(addrs[0]), []byte(nil)
			for limit := 1 + r.IntN(700); n < len(addrs) && n < limit && addrs[n] == addrs[0]+uint64(n*testPage) && kind(addrs[n]) == flags; n++ {
				content = append(content, p.pages[addrs[n]]...)
				if flags != 1 {
					p.content[addrs[n]] = flags&2 != 0
				}
			}
			var e []byte
			for num, v := range []uint64{0, addrs[0], 0, 0, flags, uint64(n)} {
				if num == 1 || num == 2 || v > 0 {
					e = protowire.AppendVarint(protowire.AppendTag(e, protowire.Number(num), protowire.VarintType), v)
				}
			}
			b = appendRecord(b, e)
			if flags == 1 {
				err = rounds.Unchanged(addrs[0], uint64(n))
			} else {
				err = rounds.Pages(addrs[0], uint64(n), flags&2 != 0, iotest.HalfReader(bytes.NewReader(content)))
			}
			if err != nil {
				return nil, nil, err
			}
			addrs = addrs[n:]
		}
		clear(p.dirty)
		pagemaps[name] = b
	}
	return pagemaps, files, rounds.End()
}

func newRounds(t testing.TB, workers int) *Rounds {
	t.Helper()
	r, err := NewRounds(t.TempDir(), testPage, PackOptions{Workers: workers})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

// TestRounds: whatever processes do between rounds, the snapshot has their memory as it is at the end, and segments and index are those that
// the same memory gives when it is dumped at once.
func TestRounds(t *testing.T) {
	for seed := range uint64(24) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 23))
			all := make(map[string]*simulated)
			rounds := newRounds(t, 2+int(seed%2))
			if seed%3 > 0 { // hardly anything finds a place in memory
				rounds.store.slots.release()
				var err error
				if rounds.store.slots, err = newSlots(1 + r.IntN(3)); err != nil {
					t.Fatal(err)
				}
			}
			next := 1
			live := func() {
				for _, name := range slices.Sorted(maps.Keys(all)) {
					if r.IntN(9) == 0 {
						delete(all, name) // it has ended
					} else if r.IntN(6) > 0 {
						all[name].live(r)
					}
				}
				for len(all) == 0 || r.IntN(4) == 0 {
					p := newSimulated()
					p.live(r)
					all[fmt.Sprintf("pagemap-%d.img", next)] = p
					next++
				}
			}
			for n := range r.IntN(5) {
				live()
				rounds.Next(fmt.Sprint(n))
				if _, _, err := send(rounds, all, r); err != nil {
					t.Fatal(err)
				}
			}
			live()
			rounds.Last()
			pagemaps, files, err := send(rounds, all, r)
			if err != nil {
				t.Fatal(err)
			}

			plain, streamed := t.TempDir(), t.TempDir()
			for name, p := range all {
				pid, _ := pages.PagemapPID(name)
				pagemap, content := encodeMemory(files[name], p.pages, func(addr uint64) bool { return p.content[addr] && !p.locked })
				writeFile(t, filepath.Join(plain, name), pagemap)
				writeFile(t, filepath.Join(streamed, name), pagemaps[name])
				if len(content) > 0 {
					writeFile(t, filepath.Join(plain, pages.FileName(uint64(files[name]))), content)
				}
				mm := fmt.Sprintf("mm-%d.img", pid)
				writeFile(t, filepath.Join(plain, mm), p.mappings(t))
				writeFile(t, filepath.Join(streamed, mm), p.mappings(t))
			}
			o := PackOptions{SegmentSize: 1 << (20 + r.IntN(6)), Workers: 1 + r.IntN(3)}
			want, store := newMemoryStore(), newMemoryStore()
			wanted := mustPack(t, want, testSource(plain), o)
			in := newIntake(t, store, o)
			if err := rounds.Complete(t.Context(), streamed, in); err != nil {
				t.Fatal(err)
			}
			src := testSource(streamed)
			src.Memory = in
			got := mustPack(t, store, src, PackOptions{})
			a, err := Open(t.Context(), want, wanted)
			if err != nil {
				t.Fatal(err)
			}
			b, err := Open(t.Context(), store, got)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.EqualFunc(a.Segments(), b.Segments(), func(a, b ocispec.Descriptor) bool { return a.Digest == b.Digest }) {
				t.Error("the segments differ")
			}
			out := filepath.Join(t.TempDir(), "images")
			if err := b.Unpack(t.Context(), store, out, UnpackOptions{}); err != nil {
				t.Fatal(err)
			}
			sameMemory(t, plain, out)
			in.Close()
			if store.open != 0 {
				t.Errorf("%d blobs are open", store.open)
			}
		})
	}
}

// sameMemory says whether two directories of images have the same memory, to be restored in the same way.
func sameMemory(t *testing.T, want, got string) {
	t.Helper()
	a, err := pages.ReadDir(want, testPage)
	if err != nil {
		t.Fatal(err)
	}
	b, err := pages.ReadDir(got, testPage)
	if err != nil {
		t.Fatal(err)
	}
	if len(a) != len(b) {
		t.Fatalf("%d pagemaps, not %d", len(b), len(a))
	}
	files, came := readDir(t, want), readDir(t, got)
	for i := range a {
		if a[i].Name != b[i].Name || !slices.Equal(a[i].Runs, b[i].Runs) || !slices.Equal(a[i].Lazy, b[i].Lazy) {
			t.Errorf("%s differs from %s", b[i].Name, a[i].Name)
		}
		if file := pages.FileName(a[i].Pages); !bytes.Equal(files[file], came[file]) {
			t.Errorf("the memory of %s differs", a[i].Name)
		}
	}
}

// TestRoundsRefuse: memory that is said to be in the round before, and is not, makes no snapshot; and what is out of order neither.
func TestRoundsRefuse(t *testing.T) {
	page := func() io.Reader { return bytes.NewReader(bytes.Repeat([]byte{7}, 1<<20)) }
	for name, test := range map[string]struct {
		calls func(r *Rounds) error
		round bool // the round before has not brought it
	}{
		"no round":    {func(r *Rounds) error { return r.Unchanged(0x8000, 1) }, true},
		"page before": {func(r *Rounds) error { return cmp.Or(first(r, page()), r.Unchanged(0x7000, 2)) }, true},
		"page behind": {func(r *Rounds) error { return cmp.Or(first(r, page()), r.Unchanged(0x9000, 2)) }, true},
		"another process": {func(r *Rounds) error {
			return cmp.Or(first(r, page()), r.Begin("pagemap-2.img", 2), r.Unchanged(0x8000, 1))
		}, true},
		// The round in between has not listed it: it was unmapped then.
		"an older round": {func(r *Rounds) error {
			if err := cmp.Or(first(r, page()), r.End()); err != nil {
				return err
			}
			r.Next("3")
			return cmp.Or(r.Begin("pagemap-1.img", 1), r.Unchanged(0x8000, 2))
		}, true},
		"overlapping": {func(r *Rounds) error {
			return cmp.Or(first(r, page()), r.Unchanged(0x8000, 2), r.Pages(0x9000, 1, false, page()))
		}, false},
		"not aligned":  {func(r *Rounds) error { return cmp.Or(first(r, page()), r.Pages(0x8800, 1, false, page())) }, false},
		"begins twice": {func(r *Rounds) error { return cmp.Or(first(r, page()), r.Begin("pagemap-1.img", 1)) }, false},
		"after an end": {func(r *Rounds) error { return cmp.Or(first(r, page()), r.End(), r.Pages(0x8000, 1, false, page())) }, false},
	} {
		r := newRounds(t, 1)
		r.Next("1")
		if name == "no round" {
			_ = r.Begin("pagemap-1.img", 1)
		}
		err := test.calls(r)
		if errdefs.IsAborted(err) != test.round || err == nil || !test.round && !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s gives %v", name, err)
		}
		if err2 := r.End(); name != "after an end" && !errors.Is(err2, err) {
			t.Errorf("%s: the end gives %v", name, err2)
		}
		if err := r.Complete(context.Background(), t.TempDir(), newIntake(t, newMemoryStore(), PackOptions{})); err == nil {
			t.Errorf("%s makes a snapshot", name)
		}
	}
}

// first is a round of two pages, and the beginning of the next.
func first(r *Rounds, page io.Reader) error {
	if err := cmp.Or(r.Begin("pagemap-1.img", 1), r.Pages(0x8000, 2, false, page), r.End()); err != nil {
		return err
	}
	r.Next("2")
	return r.Begin("pagemap-1.img", 1)
}

// TestRoundsForget: a process that was not in the round before is not in it, though it was in an older one.
func TestRoundsForget(t *testing.T) {
	r := newRounds(t, 1)
	for n, want := range []bool{false, true, false} {
		r.Next(fmt.Sprint(n))
		if got := r.Has("pagemap-1.img"); got != want {
			t.Errorf("round %d: %t", n, got)
		}
		if n == 0 {
			_ = r.Begin("pagemap-1.img", 1)
		}
		if err := r.End(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRoundsFull: a round for which there is no room says so, and what later rounds replace makes room.
func TestRoundsFull(t *testing.T) {
	content := make([]byte, 4<<20)
	for i := 0; i < len(content); i += 8 {
		binary.NativeEndian.PutUint64(content[i:], uint64(i)+1)
	}
	send := func(r *Rounds) error {
		return cmp.Or(r.Begin("pagemap-1.img", 1), r.Pages(1<<32, uint64(len(content)/testPage), true, bytes.NewReader(content)), r.End())
	}
	r := newRounds(t, 1)
	r.store.spill.room = 9 << 20
	for n := range 20 {
		r.Next(fmt.Sprint(n))
		if err := send(r); err != nil {
			t.Fatalf("round %d: %v", n, err)
		}
	}
	if waiting := r.store.spill.waiting.Load(); waiting != int64(len(content)) {
		t.Errorf("%d bytes are kept", waiting)
	}
	r.store.spill.room = 7 << 20
	r.Next("full")
	if err := send(r); !errdefs.IsResourceExhausted(err) {
		t.Errorf("gives %v", err)
	}
}
