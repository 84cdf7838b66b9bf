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
	beyondCores = 8         // from how many on more is brought into the page cache
	beyondMost  = 1 << 30   // bytes
	headShare   = 16        // of the memory that is available, what may be taken for either at most
)

// headStart reads from the disk while CRIU restores the processes: first what they will want as soon as they run, then what is filled in
// first. What is in the page cache is left there, and what cannot be held is brought into it where there are many cores: that takes
// more of them. It ends by itself, when there is no more room, and with ended. It never fails: without, it takes longer.
func headStart(s *source) (ended func()) {
	available, err := warm.Available()
	if err != nil {
		return func() {}
	}
	cores, held, beyond := headRoom(runtime.GOMAXPROCS(0), available)
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
	s.ahead = newAhead(wishes, held, beyond)
	return s.ahead.begin(cores, wishes, readers(s.pages, func(p *image.Pages, part image.Part) bool { return p.Cached(part) }), func() {})
}

// headRoom says how many readers there are on a machine, how many bytes they may hold, and how many bring into the page cache.
func headRoom(cores int, available int64) (readers int, held, beyond int64) {
	if cores >= beyondCores {
		beyond = min(beyondMost, available/headShare)
	}
	return min(cores/headCores, headReaders), min(heldMost, available/headShare), beyond
}

// readers gives what makes a reader of parts, but for those that are there.
func readers(p *image.Pages, there func(*image.Pages, image.Part) bool) func() (parts, func(), error) {
	return func() (parts, func(), error) {
		r, err := p.Reader()
		if err != nil {
			return nil, nil, err
		}
		r.Ahead = true
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
