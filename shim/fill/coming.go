package fill

import "github.com/cryo-project/cryo/image"

// urgent is how many pages are fetched side by side for which somebody waits: each takes as long as the network does.
const urgent = 4

// does is what this process does with the segments that the command is pulling.
const does = "fills in the container's memory"

// fetchAhead fetches what processes will want as soon as they run, in the background until ended ends it.
func (s *source) fetchAhead(arrived func()) (ended func(), err error) {
	wishes, err := wishesOf(s.images, s.pages)
	if err != nil {
		return nil, err
	}
	s.ahead = newAhead(wishes, heldMost, 0)
	s.ahead.again = true
	return s.ahead.begin(aheadWorkers, wishes, readers(s.pages, func(p *image.Pages, part image.Part) bool { return p.There(part) }), arrived), nil
}
