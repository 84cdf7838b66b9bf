package image

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/cryo-project/cryo/image/format"
)

const testPage = 4096

// memory is the pages of one pagemap, by address.
type memory map[uint64][]byte

// fakeImages is a directory of CRIU images as a test wants it.
type fakeImages struct {
	maps  map[string]memory                      // pagemap name -> pages
	other map[string][]byte                      // further images
	lazy  func(pagemap string, addr uint64) bool // nil: all are
}

// write makes the directory.
func (f fakeImages) write(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	id := uint32(0)
	for _, name := range slices.SortedFunc(maps.Keys(f.maps), format.ComparePagemapNames) {
		id++
		lazy := func(addr uint64) bool { return f.lazy == nil || f.lazy(name, addr) }
		pagemap, content := encodeMemory(id, f.maps[name], lazy)
		writeFile(t, filepath.Join(dir, name), pagemap)
		writeFile(t, filepath.Join(dir, format.PagesFileName(uint64(id))), content)
	}
	for name, b := range f.other {
		writeFile(t, filepath.Join(dir, name), b)
	}
	return dir
}

func writeFile(t testing.TB, name string, b []byte) {
	t.Helper()
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// encodeMemory gives a pagemap image and its pages file.
func encodeMemory(id uint32, m memory, lazy func(addr uint64) bool) (pagemap, content []byte) {
	b := imageHeader(0x56084025)
	b = appendRecord(b, protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), uint64(id)))
	addrs := slices.Sorted(maps.Keys(m))
	content = make([]byte, 0, len(m)*testPage)
	for i := 0; i < len(addrs); {
		n := 1
		flags := uint64(4)
		if lazy(addrs[i]) {
			flags |= 2
		}
		for i+n < len(addrs) && addrs[i+n] == addrs[i]+uint64(n*testPage) && lazy(addrs[i+n]) == lazy(addrs[i]) {
			n++
		}
		var e []byte
		for num, v := range []uint64{0, addrs[i], uint64(n), 0, flags} {
			if v > 0 || num == 1 {
				e = protowire.AppendVarint(protowire.AppendTag(e, protowire.Number(num), protowire.VarintType), v)
			}
		}
		b = appendRecord(b, e)
		for _, a := range addrs[i : i+n] {
			content = append(content, m[a]...)
		}
		i += n
	}
	return b, content
}

func imageHeader(magic uint32) []byte {
	return binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, 0x54564319), magic)
}

func appendRecord(b, record []byte) []byte {
	return append(binary.LittleEndian.AppendUint32(b, uint32(len(record))), record...)
}

// randomMemory makes n pages in some ranges from base on, of which some are zero, some text and some random.
func randomMemory(r *rand.Rand, base uint64, n int) memory {
	m := make(memory)
	addr := base
	for len(m) < n {
		if r.IntN(4) == 0 {
			addr += uint64(r.IntN(1<<r.IntN(14))) * testPage
		}
		kind := r.IntN(3)
		for range min(n-len(m), 1+r.IntN(300)) {
			m[addr] = randomPage(r, kind)
			addr += testPage
		}
		addr += testPage
	}
	return m
}

func randomPage(r *rand.Rand, kind int) []byte {
	p := make([]byte, testPage)
	switch kind {
	case 0:
	case 1:
		copy(p, bytes.Repeat(fmt.Appendf(nil, "line %d of a text that compresses. ", r.Uint32()), testPage/30))
	default:
		for i := 0; i < testPage; i += 8 {
			binary.LittleEndian.PutUint64(p[i:], r.Uint64())
		}
	}
	return p
}

// sameDir says whether two directories hold the same files, but for those that packing leaves out.
func sameDir(t testing.TB, want, got string) {
	t.Helper()
	a, b := readDir(t, want), readDir(t, got)
	delete(a, "dump.log")
	for name := range a {
		if !bytes.Equal(a[name], b[name]) {
			t.Errorf("%s came back with %d bytes that differ from its %d", name, len(b[name]), len(a[name]))
		}
	}
	for name := range b {
		if _, ok := a[name]; !ok {
			t.Errorf("%s was not there", name)
		}
	}
}

func readDir(t testing.TB, dir string) map[string][]byte {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[string][]byte)
	for _, e := range entries {
		if !e.Type().IsRegular() {
			continue
		}
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		out[e.Name()] = b
	}
	return out
}
