package worker

import (
	"cmp"
	"slices"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/format"
)

// Limits of what is fetched ahead.
const (
	aheadMost    = 16 << 20 // bytes, of all processes
	aheadArea    = 4 << 20  // bytes of an area that is fetched as a whole
	aheadWorkers = 2        // no more: CRIU is at work
	aheadThreads = 64       // of a process, that are looked at
)

// firstNeeded lists what the processes whose images are in a directory need first, as far as that can be told.
func firstNeeded(images string, p *image.Pages) ([]neededPiece, error) {
	processes, err := format.PagedProcesses(images)
	if err != nil {
		return nil, err
	}
	var all []neededPiece
	left := int64(aheadMost)
	for i, process := range processes {
		var used []uint64
		for _, tid := range process.TIDs[:min(len(process.TIDs), aheadThreads)] {
			registers, err := format.Registers(images, tid)
			if err != nil {
				return nil, err
			}
			used = append(used, registers...)
		}
		lazy := p.Lazy(process.PID)
		share := left / int64(len(processes)-i)
		for _, piece := range firstParts(lazy, p.PageSize(), used, share) {
			all = append(all, neededPiece{place{process.PID, piece}, lazy[piece]})
			left -= length(lazy[piece], p.PageSize())
		}
	}
	return all, nil
}

// firstParts chooses pieces, so many bytes at most: those with addresses that are used at once, then those of small areas, the smallest
// first. What a program and its libraries keep for themselves is small beside what it works on, of which nothing is known.
func firstParts(all []image.Part, pageSize int64, used []uint64, most int64) (chosen []int) {
	seen := make(map[int]bool)
	choose := func(i int) {
		if n := length(all[i], pageSize); !seen[i] && n <= most {
			seen[i] = true
			most -= n
			chosen = append(chosen, i)
		}
	}
	for _, addr := range used {
		i, found := slices.BinarySearchFunc(all, addr, func(p image.Part, addr uint64) int {
			if end(p, pageSize) <= addr {
				return -1
			}
			return cmp.Compare(max(p.Runs[0].Addr, addr), addr)
		})
		if found {
			choose(i)
		}
	}
	for _, a := range areas(all, pageSize) {
		if a.bytes > aheadArea {
			break
		}
		for i := a.from; i < a.to; i++ {
			choose(i)
		}
	}
	return chosen
}

// area is pieces from one to before another, with little between them.
type area struct {
	from, to int
	bytes    int64
}

// areas returns them by size.
func areas(all []image.Part, pageSize int64) (found []area) {
	const little = 1 << 20 // bytes; pages of zeros leave holes
	for i := range all {
		if i == 0 || all[i].Runs[0].Addr-end(all[i-1], pageSize) > little {
			found = append(found, area{from: i})
		}
		last := &found[len(found)-1]
		last.to, last.bytes = i+1, last.bytes+length(all[i], pageSize)
	}
	slices.SortStableFunc(found, func(a, b area) int { return cmp.Compare(a.bytes, b.bytes) })
	return found
}

func length(p image.Part, pageSize int64) (n int64) {
	for _, r := range p.Runs {
		n += r.Count * pageSize
	}
	return n
}

// end is the address behind a part.
func end(p image.Part, pageSize int64) uint64 {
	last := p.Runs[len(p.Runs)-1]
	return last.Addr + uint64(last.Count*pageSize)
}
