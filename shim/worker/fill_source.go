package worker

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/format"
	"github.com/cryo-project/cryo/runtime/fill"
)

// source gives a snapshot's memory in the form that is filled in.
type source struct {
	pages    *image.Pages
	images   string    // the directory, for as long as tasks are added
	prefetch *prefetch // nil: nothing is fetched ahead

	mu    sync.RWMutex
	parts map[int][]image.Part // by pid; guarded by mu
	after map[int][]int        // by pid, of each part: the next that may be there where it is not; guarded by mu
}

func newSource(p *image.Pages, images string) *source {
	return &source{pages: p, images: images, parts: make(map[int][]image.Part), after: make(map[int][]int)}
}

var (
	_ fill.Source = (*source)(nil)
	_ fill.Reader = (*segmentReader)(nil)
)

// Layout implements [fill.Source].
func (s *source) Layout(pid int) (fill.Layout, error) {
	regions, err := format.Regions(s.images, pid)
	if err != nil {
		return fill.Layout{}, err
	}
	var l fill.Layout
	for _, r := range regions {
		l.Regions = append(l.Regions, fill.Region{
			Start: r.Start, End: r.End,
			Unshared: r.Advised(unix.MADV_DONTFORK) || r.Advised(unix.MADV_WIPEONFORK),
			Huge:     r.Advised(unix.MADV_HUGEPAGE),
		})
	}
	parts := s.pages.Lazy(pid)
	for _, p := range parts {
		piece := make(fill.Piece, 0, len(p.Runs))
		for _, r := range p.Runs {
			piece = append(piece, fill.Extent{Addr: r.Addr, Length: uint64(r.Count * s.pages.PageSize())})
		}
		l.Pieces = append(l.Pieces, piece)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, twice := s.parts[pid]; twice {
		return l, fmt.Errorf("restore process %d: CRIU names it twice", pid)
	}
	s.parts[pid], s.after[pid] = parts, after(parts, s.pages.Behind)
	return l, nil
}

// after returns the part behind those that follow each in its segment.
func after(parts []image.Part, behind func(p, other image.Part) bool) []int {
	next := make([]int, len(parts))
	for i := len(parts) - 1; i >= 0; i-- {
		if next[i] = i + 1; i+1 < len(parts) && behind(parts[i+1], parts[i]) {
			next[i] = next[i+1]
		}
	}
	return next
}

// next returns the first piece from one on that can be read without waiting, as far as is known at once; -1: there is none.
func (s *source) next(pid, from int) int {
	s.mu.RLock()
	parts, after := s.parts[pid], s.after[pid]
	s.mu.RUnlock()
	for from < len(parts) {
		if s.prefetch.there(place{pid, from}) || s.pages.There(parts[from]) {
			return from
		}
		from = after[from]
	}
	return -1
}

// Reader implements [fill.Source].
func (s *source) Reader() (fill.Reader, error) {
	r, err := s.pages.Reader()
	if err != nil {
		return nil, err // not r, which would be an interface that is not nil
	}
	return &segmentReader{source: s, PagesReader: r}, nil
}

type segmentReader struct {
	source *source
	*image.PagesReader
}

// Read implements [fill.Reader].
func (r *segmentReader) Read(ctx context.Context, pid, piece int) ([]byte, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	r.source.mu.RLock()
	parts := r.source.parts[pid]
	r.source.mu.RUnlock()
	if piece >= len(parts) {
		return nil, errors.New("there is no such piece")
	}
	if data := r.source.prefetch.take(place{pid, piece}); data != nil {
		return data, nil
	}
	return r.PagesReader.Read(parts[piece])
}
