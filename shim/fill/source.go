package fill

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/pages"
	"github.com/cryo-project/cryo/runtime/lazypages"
)

// source gives a snapshot's memory in the form that is filled in.
type source struct {
	pages  *image.Pages
	images string // the directory, for as long as tasks are added
	ahead  *ahead // nil: nothing is fetched ahead

	mu    sync.RWMutex
	parts map[int][]image.Part // by pid; guarded by mu
}

var (
	_ lazypages.Source = (*source)(nil)
	_ lazypages.Reader = reader{}
)

// Layout implements [lazypages.Source].
func (s *source) Layout(pid int) (lazypages.Layout, error) {
	regions, err := pages.Regions(s.images, pid)
	if err != nil {
		return lazypages.Layout{}, err
	}
	var l lazypages.Layout
	for _, r := range regions {
		l.Regions = append(l.Regions, lazypages.Region{
			Start: r.Start, End: r.End,
			Unshared: r.Advised(unix.MADV_DONTFORK) || r.Advised(unix.MADV_WIPEONFORK),
			Huge:     r.Advised(unix.MADV_HUGEPAGE),
		})
	}
	parts := s.pages.Lazy(pid)
	for _, p := range parts {
		piece := make(lazypages.Piece, 0, len(p.Runs))
		for _, r := range p.Runs {
			piece = append(piece, lazypages.Extent{Addr: r.Addr, Length: uint64(r.Count * s.pages.PageSize())})
		}
		l.Pieces = append(l.Pieces, piece)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, twice := s.parts[pid]; twice {
		return l, fmt.Errorf("restore process %d: CRIU names it twice", pid)
	}
	s.parts[pid] = parts
	return l, nil
}

// there tells whether a piece can be read without waiting.
func (s *source) there(pid, piece int) bool {
	s.mu.RLock()
	parts := s.parts[pid]
	s.mu.RUnlock()
	return piece >= len(parts) || s.ahead.there(place{pid, piece}) || s.pages.There(parts[piece])
}

// Reader implements [lazypages.Source].
func (s *source) Reader() (lazypages.Reader, error) {
	r, err := s.pages.Reader()
	if err != nil {
		return nil, err // not r, which would be an interface that is not nil
	}
	return reader{s, r}, nil
}

type reader struct {
	source *source
	*image.PagesReader
}

// Read implements [lazypages.Reader].
func (r reader) Read(ctx context.Context, pid, piece int) ([]byte, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	r.source.mu.RLock()
	parts := r.source.parts[pid]
	r.source.mu.RUnlock()
	if piece >= len(parts) {
		return nil, errors.New("there is no such piece")
	}
	if data, err := r.source.ahead.take(ctx, place{pid, piece}); data != nil || err != nil {
		return data, err
	}
	return r.PagesReader.Read(parts[piece])
}
