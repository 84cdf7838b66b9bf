package pages

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/mm"
	"golang.org/x/sys/unix"
)

// Status of a mapping. Source: criu/include/image.h, VMA_AREA_*.
const (
	areaRegular  = 1 << 0
	areaVSyscall = 1 << 2
	areaVDSO     = 1 << 3
	areaVVar     = 1 << 12
)

// Region is one mapping of a process of which the kernel was told something: madvise(2).
type Region struct {
	Start, End uint64
	Advice     uint64 // bits by number, as 1<<MADV_HUGEPAGE
}

// Advised says whether advice was given, as unix.MADV_HUGEPAGE.
func (r Region) Advised(advice int) bool { return r.Advice&(1<<advice) != 0 }

// Range is memory from Start up to End, which is no part of it.
type Range struct{ Start, End uint64 }

// readMappings reads those of the process with this pid in the images. One without memory has none.
func readMappings(dir string, pid int) (name string, e *mm.MmEntry, err error) {
	name, e = fmt.Sprintf("mm-%d.img", pid), new(mm.MmEntry)
	return name, e, readFirst(dir, name, magicMM, e)
}

// Regions reads the mappings with advice of the process with this pid in the images, in no order. One without memory has none.
func Regions(dir string, pid int) ([]Region, error) {
	name, e, err := readMappings(dir, pid)
	if err != nil {
		return nil, err
	}
	var regions []Region
	for _, v := range e.GetVmas() {
		switch {
		case v.GetStart() > v.GetEnd() || v.GetEnd() > maxAddress && v.GetMadv() != 0:
			return nil, Malformed(name, "a mapping from %#x to %#x", v.GetStart(), v.GetEnd())
		case v.GetMadv() != 0:
			regions = append(regions, Region{Start: v.GetStart(), End: v.GetEnd(), Advice: v.GetMadv()})
		}
	}
	return regions, nil
}

// Lazy gives the mappings of the process with this pid in the images whose pages CRIU can restore after the process, ascending. A page of a
// parent's images is said to be lazy nowhere, so this is where to look. Source: criu/include/vma.h, vma_entry_can_be_lazy.
func Lazy(dir string, pid int, pageSize int64) ([]Range, error) {
	name, e, err := readMappings(dir, pid)
	if err != nil {
		return nil, err
	}
	var lazy []Range
	for _, v := range e.GetVmas() {
		const must, mustNot = unix.MAP_ANONYMOUS | unix.MAP_PRIVATE, unix.MAP_LOCKED | unix.MAP_HUGETLB
		status := v.GetStatus()
		if v.GetFlags()&(must|mustNot) != must || status&areaRegular == 0 || status&(areaVSyscall|areaVDSO|areaVVar) != 0 || v.GetStart() >= v.GetEnd() {
			continue
		}
		if v.GetStart()%uint64(pageSize) != 0 || v.GetEnd()%uint64(pageSize) != 0 {
			return nil, Malformed(name, "a mapping from %#x to %#x, of pages of %d bytes", v.GetStart(), v.GetEnd(), pageSize)
		}
		lazy = append(lazy, Range{Start: v.GetStart(), End: v.GetEnd()})
	}
	slices.SortFunc(lazy, func(a, b Range) int { return cmp.Compare(a.Start, b.Start) })
	return lazy, nil
}
