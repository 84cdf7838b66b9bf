package pages

import (
	"io"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/mm"
)

// Region is one mapping of a process of which the kernel was told something: madvise(2).
type Region struct {
	Start, End uint64
	Advice     uint64 // bits by number, as 1<<MADV_HUGEPAGE
}

// Advised says whether advice was given, as unix.MADV_HUGEPAGE.
func (r Region) Advised(advice int) bool { return r.Advice&(1<<advice) != 0 }

// Regions reads the mappings with advice of the process with this pid in the images, in no order. One without memory has none.
func Regions(dir string, pid int) ([]Region, error) {
	return readNumbered(dir, "mm", pid, readRegions)
}

func readRegions(name string, r io.Reader) ([]Region, error) {
	var e mm.MmEntry
	if err := readRecord(name, r, magicMM, &e, "its record does not describe memory"); err != nil {
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
