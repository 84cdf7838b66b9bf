package pages

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/mm"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/vma"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

const resolvePage = 4096

// fields makes a record of varints: number and value by turns.
func fields(v ...uint64) (b []byte) {
	for i := 0; i < len(v); i += 2 {
		b = protowire.AppendVarint(protowire.AppendTag(b, protowire.Number(v[i]), protowire.VarintType), v[i+1])
	}
	return b
}

// TestResolve: entries in a parent become entries of their own in the form that they have, and all others stay.
func TestResolve(t *testing.T) {
	head := fields(1, 3)
	halves := func(addr uint64, count int64) ([]Part, error) {
		return []Part{{Addr: addr, Count: 1, Lazy: true}, {Addr: addr + resolvePage, Count: count - 1}}, nil
	}
	for name, test := range map[string]struct{ in, want [][]byte }{
		"since 4.2": {
			[][]byte{head, fields(1, 0x1000, 2, 0, 4, 6, 5, 1), fields(1, 0x2000, 2, 0, 4, 1, 5, 3)},
			[][]byte{head, fields(1, 0x1000, 2, 0, 4, 6, 5, 1), fields(1, 0x2000, 2, 0, 4, 6, 5, 1), fields(1, 0x3000, 2, 0, 4, 4, 5, 2)},
		},
		"before 4.2": {
			[][]byte{head, fields(1, 0x2000, 2, 3, 4, 1)},
			[][]byte{head, fields(1, 0x2000, 2, 1, 4, 6), fields(1, 0x3000, 2, 2, 4, 4)},
		},
		"no flags": {
			[][]byte{head, fields(1, 0x1000, 2, 1), fields(1, 0x2000, 2, 3, 3, 1)},
			[][]byte{head, fields(1, 0x1000, 2, 1), fields(1, 0x2000, 2, 1, 4, 6), fields(1, 0x3000, 2, 2, 4, 4)},
		},
		"no parent": {[][]byte{head, fields(1, 0x1000, 2, 1, 4, 4, 9, 9)}, [][]byte{head, fields(1, 0x1000, 2, 1, 4, 4, 9, 9)}},
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, "pagemap-1.img")
		pagemap := func(records [][]byte) []byte {
			var all []any
			for _, r := range records {
				all = append(all, r)
			}
			return image(t, magicPagemap, all...)
		}
		if err := os.WriteFile(path, pagemap(test.in), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := Resolve(dir, "pagemap-1.img", resolvePage, halves); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got, _ := os.ReadFile(path); !bytes.Equal(got, pagemap(test.want)) {
			t.Errorf("%s gives %x", name, got)
		}
	}
}

func TestResolveRefuses(t *testing.T) {
	whole := image(t, magicPagemap, fields(1, 3), fields(1, 0x2000, 2, 3, 4, 1))
	given := errors.New("as ordered")
	for name, test := range map[string]struct {
		data []byte
		list []Part
		err  error
		kind func(error) bool
	}{
		"other image": {image(t, magicCore), nil, nil, errdefs.IsDataLoss},
		"no head":     {image(t, magicPagemap), nil, nil, errdefs.IsDataLoss},
		"cut":         {whole[:len(whole)-1], nil, nil, errdefs.IsDataLoss},
		"too large":   {image(t, magicPagemap, fields(1, 3), fields(1, 0x2000, 2, 0, 4, 1, 5, 1<<62)), nil, nil, errdefs.IsDataLoss},
		"nothing":     {whole, nil, nil, errdefs.IsDataLoss},
		"too little":  {whole, []Part{{Addr: 0x2000, Count: 2}}, nil, errdefs.IsDataLoss},
		"too much":    {whole, []Part{{Addr: 0x2000, Count: 4}}, nil, errdefs.IsDataLoss},
		"elsewhere":   {whole, []Part{{Addr: 0x3000, Count: 3}}, nil, errdefs.IsDataLoss},
		"its error":   {whole, nil, given, func(err error) bool { return errors.Is(err, given) }},
	} {
		if _, err := resolve("pagemap-1.img", test.data, resolvePage, func(uint64, int64) ([]Part, error) { return test.list, test.err }); !test.kind(err) {
			t.Errorf("%s gives %v", name, err)
		}
	}
}

// FuzzResolve resolves what may be a pagemap: the result is one, of the same pages, of which none is in a parent.
func FuzzResolve(f *testing.F) {
	f.Add(image(f, magicPagemap, fields(1, 3), fields(1, 0x1000, 2, 0, 4, 6, 5, 1), fields(1, 0x2000, 2, 0, 4, 1, 5, 3)))
	f.Add(image(f, magicPagemap, fields(1, 3), fields(1, 0x2000, 2, 3, 3, 1)))
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := resolve("pagemap-1.img", data, resolvePage, func(addr uint64, count int64) ([]Part, error) {
			return []Part{{Addr: addr, Count: count, Lazy: count%2 > 0}}, nil
		})
		if err != nil {
			if !errdefs.IsDataLoss(err) {
				t.Errorf("gives %v", err)
			}
			return
		}
		if got == nil {
			got = data
		}
		if _, err := ReadPagemap("pagemap-1.img", bytes.NewReader(got), resolvePage); errdefs.IsNotImplemented(err) {
			t.Errorf("the result gives %v", err)
		}
	})
}

func TestLazy(t *testing.T) {
	const anonymous = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS
	area := func(start uint64, flags, status uint32) *vma.VmaEntry {
		return &vma.VmaEntry{Start: &start, End: proto.Uint64(start + 0x8000), Flags: &flags, Status: &status}
	}
	dir := t.TempDir()
	mappings := image(t, magicMM, &mm.MmEntry{Vmas: []*vma.VmaEntry{
		area(0x50000, anonymous, areaRegular), area(0x10000, anonymous, areaRegular), area(0x20000, anonymous|unix.MAP_LOCKED, areaRegular),
		area(0x30000, anonymous|unix.MAP_HUGETLB, areaRegular), area(0x40000, unix.MAP_PRIVATE, areaRegular),
		area(0x60000, anonymous, areaRegular|areaVDSO), area(0x70000, anonymous, areaRegular|areaVVar), area(0x80000, unix.MAP_SHARED|unix.MAP_ANONYMOUS, areaRegular),
		area(0x90000, anonymous, areaVSyscall),
	}})
	for name, b := range map[string][]byte{
		"mm-7.img":   mappings,
		"core-7.img": image(t, magicCore, thread(0x17fff, 0x10000, 0x52345)), // CRIU makes no difference between a thread's pages and others
	} {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Lazy(dir, 7, resolvePage)
	if want := []Range{{0x10000, 0x18000}, {0x50000, 0x58000}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("gives %#x, %v", got, err)
	}
	crooked := image(t, magicMM, &mm.MmEntry{Vmas: []*vma.VmaEntry{area(0x10800, anonymous, areaRegular)}})
	if _, err := Lazy(put(t, dir, "mm-1.img", crooked), 1, resolvePage); !errdefs.IsDataLoss(err) {
		t.Errorf("half a page gives %v", err)
	}
	if got, err := Lazy(dir, 9, resolvePage); got != nil || err != nil {
		t.Errorf("a process without memory gives %v, %v", got, err)
	}
}
