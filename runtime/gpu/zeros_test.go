package gpu

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/cryo-project/cryo/runtime/gpu/library"
)

func TestWithout(t *testing.T) {
	type pairs [][2]uint64
	ranges := func(all pairs) (ranges []library.Range) {
		for _, r := range all {
			ranges = append(ranges, library.Range{First: r[0], End: r[1]})
		}
		return ranges
	}
	for _, test := range []struct{ ranges, others, want pairs }{
		{nil, nil, nil},
		{pairs{{1, 5}}, nil, pairs{{1, 5}}},
		{pairs{{1, 5}}, pairs{{1, 5}}, nil},
		{pairs{{1, 5}}, pairs{{0, 9}}, nil},
		{pairs{{1, 9}}, pairs{{3, 4}, {6, 7}}, pairs{{1, 3}, {4, 6}, {7, 9}}},
		{pairs{{1, 4}, {6, 9}}, pairs{{0, 2}, {3, 7}}, pairs{{2, 3}, {7, 9}}},
		{pairs{{5, 9}}, pairs{{0, 1}, {1, 5}, {9, 12}}, pairs{{5, 9}}},
	} {
		if got := without(ranges(test.ranges), ranges(test.others)); !slices.Equal(got, ranges(test.want)) {
			t.Errorf("%v without %v is %v, want %v", test.ranges, test.others, got, test.want)
		}
	}
}

// newMemory are mappings as the driver's checkpoint leaves them, beside the ones there were: what it has saved, which has grown together with the program's, and
// what is of no concern.
const oldMemory = `10000000-18000000 rw-p 00000000 00:00 0
40000000-48000000 rw-p 00000000 00:00 0   [anon: heap]
`

const newMemory = `08000000-18000000 rw-p 00000000 00:00 0
20000000-20ff0000 rw-p 00000000 00:00 0
21000000-22000000 rw-p 00000000 00:00 0   [anon: of a name]
23000000-25000000 r--p 00000000 00:00 0
26000000-28000000 rw-s 00000000 00:01 77   /dev/zero (deleted)
30000000-38000000 rw-p 00000000 00:0f 12   /anon_hugepage (deleted)
40000000-48000000 rw-p 00000000 00:00 0
50000000-58000000 rw-p 00000000 00:00 0   [heap]
7f0000000000-7f4000000000 rw-p 00000000 00:00 0
`

// TestDropZeros asks the libraries for what is new, wherever the memory went, and nobody else for anything.
func TestDropZeros(t *testing.T) {
	want := []library.Range{{First: 0x7f0000000000, End: 0x7f4000000000}, {First: 0x8000000, End: 0x10000000}, {First: 0x21000000, End: 0x22000000}}
	for _, engine := range []string{"keeper", "driver"} {
		for _, device := range []bool{true, false} {
			for _, how := range []string{"", "1", "gone"} {
				t.Run(fmt.Sprintf("%s device %v %q", engine, device, how), func(t *testing.T) {
					w := newWorld(t, 101, 102, 103)
					if device {
						w.write("dev/userfaultfd", "")
					}
					w.give(101, 1)
					w.give(102, 0)
					for _, pid := range []int{101, 102, 103} {
						w.write(fmt.Sprintf("proc/%d/maps", pid), cudaMaps+oldMemory)
					}
					w.grown = func(pid int) {
						text := cudaMaps + oldMemory
						if pid != 102 {
							text = cudaMaps + newMemory
						}
						w.write(fmt.Sprintf("proc/%d/maps", pid), text)
					}
					e := w.keeperEngine()
					if engine == "driver" {
						e.Handover, e.Fallback = nil, "a test"
					}
					if how != "" {
						w.fail, w.how = "zeros 101", how
					}
					if _, err := e.Save(t.Context()); err != nil {
						t.Fatal(err)
					}
					if err := e.Load(t.Context()); err != nil {
						t.Fatal(err)
					}
					e.Release()
					w.settled()
					w.whole()
					asked := map[int][]library.Range{101: want}
					if !device || how != "" {
						asked = nil
					}
					if len(w.zeros) != len(asked) || len(asked) > 0 && !reflect.DeepEqual(w.zeros, asked) {
						t.Errorf("asked for %x, want %x; did %q", w.zeros, asked, w.did)
					}
				})
			}
		}
	}
}

// TestNoteMemory reads no mappings, which takes a process's lock on them, where nothing could be dropped.
func TestNoteMemory(t *testing.T) {
	w := newWorld(t, 101)
	w.write("proc/101/maps", cudaMaps+oldMemory)
	e := w.keeperEngine()
	all := []cudaProcess{{Process: Process{PID: 101}}}
	if noted := e.noteMemory(all)(); len(noted) != 0 {
		t.Errorf("without the device: %x", noted)
	}
	w.write("dev/userfaultfd", "")
	if noted := e.noteMemory(all)(); len(noted) != 1 || len(noted[101]) == 0 {
		t.Errorf("with it: %x", noted)
	}
	e.Library = nil
	if noted := e.noteMemory(all)(); len(noted) != 0 {
		t.Errorf("without the library: %x", noted)
	}
}
