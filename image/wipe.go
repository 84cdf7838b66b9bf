package image

import (
	"cmp"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/format"
)

// wipe leaves out the pages of processes that fork(2) would have wiped in a child (madvise(2), MADV_WIPEONFORK), for zeros to be there instead. CRIU's images are in dir. Libraries
// keep there what two processes must not share, such as the state of a random number generator, and make it anew where they find zeros.
func (m *Pages) wipe(dir string) error {
	m.wiped = make(map[uint64][]format.PageRun)
	for name, id := range m.ids {
		pid, ok := format.PagemapPID(name)
		if !ok {
			continue // shared memory, which fork leaves alone
		}
		regions, err := format.Regions(dir, pid)
		if err != nil {
			return err
		}
		regions = slices.DeleteFunc(regions, func(r format.Region) bool { return !r.Advised(unix.MADV_WIPEONFORK) })
		if len(regions) > 0 {
			m.wiped[id] = within(m.maps[id].Runs, regions, m.x.PageSize)
		}
	}
	return nil
}

// within returns the pages that are both in runs and in regions, in the order of runs, which is ascending.
func within(runs []format.PageRun, regions []format.Region, pageSize int64) (found []format.PageRun) {
	slices.SortFunc(regions, func(a, b format.Region) int { return cmp.Compare(a.Start, b.Start) })
	for _, run := range runs {
		end := run.Addr + uint64(run.Count*pageSize)
		for _, r := range regions {
			from, to := max(r.Start, run.Addr), min(r.End, end)
			if from >= to {
				continue
			}
			first := int64(from-run.Addr) / pageSize
			count := (int64(to-run.Addr)+pageSize-1)/pageSize - first
			found = append(found, format.PageRun{Addr: run.Addr + uint64(first*pageSize), First: run.First + first, Count: count})
		}
	}
	return found
}

// runs returns what is restored of a frame of a pages file.
func (m *Pages) runs(id uint64, frame int32) []format.Run {
	runs := m.x.Frames[frame].Runs
	if wiped := m.wiped[id]; wiped != nil {
		return choose(runs, wiped, m.x.PageSize, false)
	}
	return runs
}
