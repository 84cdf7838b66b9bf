package format

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	criucore "github.com/checkpoint-restore/go-criu/v8/crit/images/criu-core"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/inventory"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/mm"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/pagemap"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/pstree"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/vma"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// image makes an image of CRIU's out of records, which are messages or bytes.
func image(t testing.TB, magic uint32, all ...any) []byte {
	t.Helper()
	b := ImageHead(magic)
	for _, r := range all {
		raw, ok := r.([]byte)
		if !ok {
			var err error
			if raw, err = (proto.MarshalOptions{AllowPartial: true}).Marshal(r.(proto.Message)); err != nil {
				t.Fatal(err)
			}
		}
		b = AppendRecord(b, raw)
	}
	return b
}

// put writes an image into a directory; nil: none.
func put(t testing.TB, dir, name string, image []byte) string {
	t.Helper()
	if image != nil {
		if err := os.WriteFile(filepath.Join(dir, name), image, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func head(id uint32) *pagemap.PagemapHead { return &pagemap.PagemapHead{PagesId: proto.Uint32(id)} }

// rangeOf is an entry as CRIU before 4.2 writes it, that counts pages in 32 bits.
func rangeOf(addr uint64, n, flags uint32) *pagemap.PagemapEntry {
	return &pagemap.PagemapEntry{Vaddr: &addr, CompatNrPages: &n, Flags: &flags}
}

// wide is an entry as CRIU writes it that counts pages in 64 bits.
func wide(addr, n uint64) []byte {
	var b []byte
	for _, f := range [][2]uint64{{1, addr}, {2, 0}, {4, flagPresent}, {5, n}} {
		b = protowire.AppendVarint(protowire.AppendTag(b, protowire.Number(f[0]), protowire.VarintType), f[1])
	}
	return b
}

func TestReadPagemap(t *testing.T) {
	n := uint32(3)
	addr := uint64(0x1000)
	tests := []struct {
		name    string
		records []any
		runs    []PageRun
		count   int64
		lazy    []PageRun
	}{
		{"empty", []any{head(7)}, nil, 0, nil},
		{"one", []any{head(7), rangeOf(0x1000, 3, 4)}, []PageRun{{0x1000, 0, 3}}, 3, nil},
		{"lazy", []any{head(7), rangeOf(0x1000, 3, 6)}, []PageRun{{0x1000, 0, 3}}, 3, []PageRun{{0x1000, 0, 3}}},
		{"gap", []any{head(7), rangeOf(0, 1, 4), rangeOf(0x5000, 2, 4)}, []PageRun{{0, 0, 1}, {0x5000, 1, 2}}, 3, nil},
		{"joined", []any{head(7), rangeOf(0, 256, 4), rangeOf(0x100000, 256, 6), rangeOf(0x200000, 1, 6)}, []PageRun{{0, 0, 513}}, 513, []PageRun{{0x100000, 256, 257}}},
		{"lazy around", []any{head(7), rangeOf(0, 1, 6), rangeOf(0x1000, 1, 4), rangeOf(0x2000, 1, 6)}, []PageRun{{0, 0, 3}}, 3, []PageRun{{0, 0, 1}, {0x2000, 2, 1}}},
		{"absent", []any{head(7), rangeOf(0, 1, 4), rangeOf(0x1000, 5, 2), rangeOf(0x6000, 1, 4)}, []PageRun{{0, 0, 1}, {0x6000, 1, 1}}, 2, nil},
		{"without flags", []any{head(7), &pagemap.PagemapEntry{Vaddr: &addr, CompatNrPages: &n}}, []PageRun{{0x1000, 0, 3}}, 3, nil},
		{"not in parent", []any{head(7), &pagemap.PagemapEntry{Vaddr: &addr, CompatNrPages: &n, InParent: proto.Bool(false)}}, []PageRun{{0x1000, 0, 3}}, 3, nil},
		{"64 bits", []any{head(7), wide(0x2000, 1<<33)}, []PageRun{{0x2000, 0, 1 << 33}}, 1 << 33, nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			m, err := ReadPagemap("pagemap-1.img", iotest.OneByteReader(bytes.NewReader(image(t, magicPagemap, test.records...))), 4096)
			if err != nil {
				t.Fatal(err)
			}
			if want := (&Pagemap{"pagemap-1.img", 7, test.runs, test.count, test.lazy}); !reflect.DeepEqual(m, want) {
				t.Errorf("got %+v instead of %+v", m, want)
			}
		})
	}
}

func TestReadPagemapRefuses(t *testing.T) {
	parent := &pagemap.PagemapEntry{Vaddr: proto.Uint64(0), CompatNrPages: proto.Uint32(1), InParent: proto.Bool(true)}
	sound := image(t, magicPagemap, head(1), rangeOf(0, 1, 4))
	tests := []struct {
		name   string
		image  []byte
		kind   func(error) bool
		reason string
	}{
		{"nothing", nil, errdefs.IsDataLoss, "ends within"},
		{"text", []byte("hello, this is text"), errdefs.IsDataLoss, "magic"},
		{"other image", image(t, magicCore, head(1)), errdefs.IsDataLoss, "magic"},
		{"no head", image(t, magicPagemap), errdefs.IsDataLoss, "no head"},
		{"empty head", image(t, magicPagemap, []byte{}), errdefs.IsDataLoss, "no pages file"},
		{"cut", sound[:len(sound)-1], errdefs.IsDataLoss, "ends within"},
		{"cut length", sound[:len(sound)-9], errdefs.IsDataLoss, "ends within"},
		{"huge record", append(bytes.Clone(sound), 0xff, 0xff, 0xff, 0xff), errdefs.IsDataLoss, "at most"},
		{"long record", append(bytes.Clone(sound), 0, 0, 0x30, 0), errdefs.IsDataLoss, "ends within"},
		{"long image", append(bytes.Clone(sound), make([]byte, MaxImage)...), errdefs.IsDataLoss, "more than"},
		{"no protobuf", image(t, magicPagemap, head(1), []byte{0xff}), errdefs.IsDataLoss, "no pagemap_entry"},
		{"no count", image(t, magicPagemap, head(1), []byte{8, 0}), errdefs.IsDataLoss, "without"},
		{"odd address", image(t, magicPagemap, head(1), rangeOf(0x1001, 1, 4)), errdefs.IsDataLoss, "multiple"},
		{"backwards", image(t, magicPagemap, head(1), rangeOf(0x2000, 1, 4), rangeOf(0x1000, 1, 4)), errdefs.IsDataLoss, "after"},
		{"overlap", image(t, magicPagemap, head(1), rangeOf(0x2000, 2, 4), rangeOf(0x3000, 1, 4)), errdefs.IsDataLoss, "after"},
		{"wraps", image(t, magicPagemap, head(1), rangeOf(^uint64(4095), 2, 4)), errdefs.IsDataLoss, "outside"},
		{"endless", image(t, magicPagemap, head(1), wide(0, 1<<63)), errdefs.IsDataLoss, "outside"},
		{"parent", image(t, magicPagemap, head(1), parent), errdefs.IsNotImplemented, "increment"},
		{"parent flag", image(t, magicPagemap, head(1), rangeOf(0, 1, 1)), errdefs.IsNotImplemented, "increment"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := ReadPagemap("x", bytes.NewReader(test.image), 4096)
			var h interface{ Hint() string }
			if !test.kind(err) || !strings.Contains(err.Error(), test.reason) || !errors.As(err, &h) {
				t.Errorf("gives %v", err)
			}
		})
	}
	boom := errors.New("boom")
	if _, err := ReadPagemap("x", iotest.ErrReader(boom), 4096); !errors.Is(err, boom) {
		t.Errorf("a reader's error gives %v", err)
	}
}

func TestReadDir(t *testing.T) {
	one := func(id uint32, n uint32) []byte { return image(t, magicPagemap, head(id), rangeOf(0, n, 4)) }
	tests := []struct {
		name   string
		files  map[string][]byte
		order  string // names, or what the error says
		failed bool
	}{
		{"order", map[string][]byte{
			"pagemap-10.img": one(1, 1), "pages-1.img": make([]byte, 4096),
			"pagemap-9.img": one(2, 1), "pages-2.img": make([]byte, 4096),
			"pagemap-shmem-3.img": one(3, 2), "pages-3.img": make([]byte, 8192),
			"pagemap-x.img": nil, "core-9.img": nil,
		}, "pagemap-9.img pagemap-10.img pagemap-shmem-3.img", false},
		{"nothing to store", map[string][]byte{"pagemap-1.img": image(t, magicPagemap, head(1))}, "", false},
		{"empty file", map[string][]byte{"pagemap-1.img": image(t, magicPagemap, head(1)), "pages-1.img": nil}, "pagemap-1.img", false},
		{"shared", map[string][]byte{"pagemap-1.img": one(1, 1), "pagemap-2.img": one(1, 1), "pages-1.img": make([]byte, 4096)}, "names as well", true},
		{"missing", map[string][]byte{"pagemap-1.img": one(1, 1)}, "missing", true},
		{"short", map[string][]byte{"pagemap-1.img": one(1, 1), "pages-1.img": make([]byte, 4095)}, "4095 bytes", true},
		{"long", map[string][]byte{"pagemap-1.img": one(1, 1), "pages-1.img": make([]byte, 8192)}, "8192 bytes", true},
		{"left over", map[string][]byte{"pages-1.img": nil}, "no pagemap", true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, b := range test.files {
				if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			maps, err := ReadPagemapDir(dir, 4096)
			if test.failed {
				if !errdefs.IsDataLoss(err) || !strings.Contains(err.Error(), test.order) {
					t.Errorf("gives %v", err)
				}
				return
			}
			var names []string
			for _, m := range maps {
				names = append(names, m.Name)
			}
			if err != nil || strings.Join(names, " ") != test.order {
				t.Errorf("gives %v, %v", names, err)
			}
		})
	}
}

func TestProcesses(t *testing.T) {
	dir := t.TempDir()
	process := func(pid uint32, threads ...uint32) *pstree.PstreeEntry {
		return &pstree.PstreeEntry{Pid: &pid, Ppid: proto.Uint32(0), Pgid: &pid, Sid: &pid, Threads: threads}
	}
	core := func(comm string) []byte {
		mtype := criucore.CoreEntry_X86_64
		return image(t, magicCore, &criucore.CoreEntry{Mtype: &mtype, Tc: &criucore.TaskCoreEntry{Comm: &comm}})
	}
	for name, b := range map[string][]byte{
		"pstree.img": image(t, magicPSTree, process(1, 1, 2, 3), process(20, 20), process(9)),
		"core-1.img": core("server"), "core-20.img": core("a\x1b[31m\nb"),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := PagedProcesses(dir)
	if want := []PagedProcess{{1, "server", 3, []int{1, 2, 3}}, {20, "a?[31m?b", 1, []int{20}}, {9, "", 1, nil}}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("gives %+v, %v", got, err)
	}
	if got, err := PagedProcesses(t.TempDir()); got != nil || err != nil {
		t.Errorf("an empty directory gives %v, %v", got, err)
	}
	if _, err := PagedProcesses(put(t, dir, "core-20.img", image(t, magicCore))); !errdefs.IsDataLoss(err) {
		t.Errorf("a bad core gives %v", err)
	}
	if _, err := PagedProcesses(put(t, dir, "pstree.img", image(t, magicPSTree, []byte{0xff}))); !errdefs.IsDataLoss(err) {
		t.Errorf("a bad tree gives %v", err)
	}
}

func FuzzReadPagemap(f *testing.F) {
	f.Add(image(f, magicPagemap, head(1), rangeOf(0, 1, 4), rangeOf(0x5000, 300, 6), wide(1<<40, 7)), uint8(0))
	f.Add(image(f, magicPagemap, head(1), rangeOf(0, 1, 1)), uint8(1))
	f.Fuzz(func(t *testing.T, b []byte, shift uint8) {
		pageSize := int64(4096) << (shift % 5)
		m, err := ReadPagemap("x", bytes.NewReader(b), pageSize)
		if err != nil {
			if !errdefs.IsDataLoss(err) && !errdefs.IsNotImplemented(err) {
				t.Errorf("gives %v", err)
			}
			return
		}
		var count int64
		var end uint64
		for i, r := range m.Runs {
			if r.First != count || r.Count < 1 || i > 0 && r.Addr <= end || r.Addr%uint64(pageSize) != 0 {
				t.Errorf("run %d of %+v", i, m.Runs)
			}
			count += r.Count
			end = r.Addr + uint64(r.Count*pageSize)
		}
		if count != m.Count || end > maxAddress {
			t.Errorf("%d pages up to %x, not %d", count, end, m.Count)
		}
	})
}

// FuzzImages has all images of one process that have one record of interest.
func FuzzImages(f *testing.F) {
	f.Add(image(f, magicPSTree, &pstree.PstreeEntry{Pid: proto.Uint32(7), Ppid: proto.Uint32(0), Pgid: proto.Uint32(7), Sid: proto.Uint32(7)}))
	f.Add(image(f, magicCore, &criucore.CoreEntry{Tc: &criucore.TaskCoreEntry{Comm: proto.String("x")}}))
	f.Add(image(f, magicCore, thread(0x7000, 0x6000, 0x5008)))
	f.Add(image(f, magicMM, &mm.MmEntry{Vmas: []*vma.VmaEntry{mapping(0x2000, 0x9000, 1<<unix.MADV_HUGEPAGE)}}))
	f.Add(inventoryOf(f, &inventory.InventoryEntry{NetworkLockMethod: proto.Uint32(1)}))
	f.Add([]byte{})
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, name := range []string{"core-7.img", "mm-7.img", "inventory.img", "pstree.img"} {
			put(t, dir, name, b)
		}
		tree, treeErr := PagedProcesses(dir)
		registers, registersErr := Registers(dir, 7)
		regions, regionsErr := Regions(dir, 7)
		_, lockErr := ReadNetworkLock(dir)
		for _, err := range []error{treeErr, registersErr, regionsErr, lockErr} {
			if err != nil && !errdefs.IsDataLoss(err) {
				t.Errorf("gives %v", err)
			}
		}
		for _, p := range tree {
			if strings.ContainsAny(p.Command, "\x00\x1b\n") {
				t.Errorf("gives %q", p.Command)
			}
		}
		for _, r := range regions {
			if r.Start > r.End || r.End > maxAddress {
				t.Errorf("gives %+v", r)
			}
		}
		if slices.Contains(registers, 0) {
			t.Errorf("gives %x", registers)
		}
	})
}
