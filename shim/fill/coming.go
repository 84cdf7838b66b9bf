package fill

// urgent is how many pages are fetched side by side for which somebody waits: each takes as long as the network does.
const urgent = 4

// fetchAhead fetches what processes will want as soon as they run, in the background until ended ends it.
func (s *source) fetchAhead(arrived func()) (ended func(), err error) {
	needed, err := firstNeeded(s.images, s.pages)
	if err != nil {
		return nil, err
	}
	s.prefetch = &prefetch{pieces: make(map[place][]byte), taken: make(map[place]bool)}
	open := func() (parts, error) {
		r, err := s.pages.Reader()
		if err != nil {
			return nil, err // not r, which would be an interface that is not nil
		}
		r.Ahead = true
		return r, nil
	}
	return s.prefetch.begin(aheadWorkers, needed, s.pages.There, open, arrived), nil
}
