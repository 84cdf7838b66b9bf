package fill

import (
	"runtime"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/warm"
)

// Limits of the head start.
const (
	headCores   = 4         // a reader for so many: CRIU, runc and containerd are at work on the others
	headReaders = 4         // at most: two keep a disk busy, more hide the latency of one in the network
	heldMost    = 256 << 20 // bytes
	heldShare   = 16        // of the memory that is available, what may be held at most
)

// headStart reads from the disk while CRIU restores the processes: first what they will want as soon as they run, then what is filled in
// first. What is in the page cache is left there. It ends by itself, when as much is held as may be, and with ended. It never fails: without, it
// takes longer.
func headStart(s *source) (ended func()) {
	available, err := warm.Available()
	if err != nil {
		return func() {}
	}
	cores, room := headRoom(runtime.GOMAXPROCS(0), available)
	if cores == 0 {
		return func() {}
	}
	wishes, err := wishesOf(s.images, s.pages)
	if err == nil {
		wishes, err = rest(wishes, s.images, s.pages)
	}
	if err != nil {
		return func() {} // CRIU says what is wrong with its images
	}
	s.ahead = newAhead(wishes, room)
	return s.ahead.begin(cores, wishes, readers(s.pages, func(p *image.Pages, part image.Part) bool { return p.Cached(part) }), func() {})
}

// headRoom says how many readers there are on a machine, and how many bytes they may hold.
func headRoom(cores int, available int64) (readers int, room int64) {
	return min(cores/headCores, headReaders), min(heldMost, available/heldShare)
}

// readers gives what makes a reader of parts, but for those that are there.
func readers(p *image.Pages, there func(*image.Pages, image.Part) bool) func() (parts, func(), error) {
	return func() (parts, func(), error) {
		r, err := p.Reader()
		if err != nil {
			return nil, nil, err
		}
		return pieces{r, func(part image.Part) bool { return there(p, part) }}, r.Close, nil
	}
}

// pieces are [parts] of a snapshot.
type pieces struct {
	*image.PagesReader
	there func(image.Part) bool
}

// There implements [parts].
func (p pieces) There(part image.Part) bool { return p.there(part) }
