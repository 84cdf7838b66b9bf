package format

import (
	"fmt"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/mm"
)

// Region is one mapping of a process of which the kernel was told something: madvise(2).
type Region struct {
	Start, End uint64
	Advice     uint64 // bits by number, as 1<<MADV_HUGEPAGE
}

// Advised reports whether advice was given, as unix.MADV_HUGEPAGE.
func (r Region) Advised(advice int) bool { return r.Advice&(1<<advice) != 0 }

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
			return nil, MalformedImage(name, "a mapping from %#x to %#x", v.GetStart(), v.GetEnd())
		case v.GetMadv() != 0:
			regions = append(regions, Region{Start: v.GetStart(), End: v.GetEnd(), Advice: v.GetMadv()})
		}
	}
	return regions, nil
}
