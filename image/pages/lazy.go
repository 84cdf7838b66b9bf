package pages

import (
	"cmp"
	"io"
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

// Range is memory from Start up to End, which is no part of it.
type Range struct{ Start, End uint64 }

// Lazy gives the mappings of the process with this pid in the images whose pages CRIU can restore after the process, ascending. A page of a
// parent's images is said to be lazy nowhere, so this is where to look. Source: criu/include/vma.h, vma_entry_can_be_lazy.
func Lazy(dir string, pid int, pageSize int64) ([]Range, error) {
	return readNumbered(dir, "mm", pid, func(name string, r io.Reader) ([]Range, error) { return readLazy(name, r, pageSize) })
}

func readLazy(name string, r io.Reader, pageSize int64) ([]Range, error) {
	var e mm.MmEntry
	if err := readRecord(name, r, magicMM, &e, "its record does not describe memory"); err != nil {
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
