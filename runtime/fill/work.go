package fill

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// work fills until there is nothing to do any more.
func (f *Filler) work(ctx context.Context, rest bool) error {
	reader, err := f.Source.Reader()
	if err != nil {
		return err
	}
	defer reader.Close()
	for {
		s, addr, piece := f.next(rest)
		if s == nil {
			if err := ctx.Err(); err != nil {
				return context.Cause(ctx)
			}
			return nil
		}
		if piece < 0 {
			if piece, err = f.answer(ctx, s, &addr); err != nil {
				return err
			}
			if piece < 0 {
				continue
			}
		}
		n, err := f.load(ctx, reader, s, piece, addr)
		switch {
		case errors.Is(err, unix.ESRCH):
			err = f.close(s)
		case err == nil:
			err = f.finish(s, piece)
		}
		if err != nil {
			return err
		}
		f.filled.Add(int64(n))
		if rest && addr == 0 {
			if err := f.slow(ctx, n); err != nil {
				return err
			}
		}
	}
}

// answer does what it can at once for a process that waits for a page. Otherwise it gives the piece with the page, begun with, and the
// page's address as it was when it was dumped.
func (f *Filler) answer(ctx context.Context, s *space, addr *uint64) (piece int, err error) {
	for {
		piece, errno := f.tryAnswer(s, addr)
		switch errno {
		case 0:
			return piece, nil
		case unix.EAGAIN, unix.ENOMEM:
			if err := f.pause(ctx, 0); err != nil {
				return -1, err
			}
		case unix.ESRCH:
			return -1, f.close(s)
		default:
			return -1, fmt.Errorf("fill process %d: page %#x: %w", s.pid, *addr, errno)
		}
	}
}

func (f *Filler) tryAnswer(s *space, addr *uint64) (piece int, errno unix.Errno) {
	// What the views show must not change before the page of zeros is there.
	s.mem.RLock()
	defer s.mem.RUnlock()
	if s.closed {
		return -1, 0
	}
	page := *addr &^ (f.PageSize - 1)
	if was, ok := s.views.at(page); ok {
		if i, ok := s.layout.find(was); ok {
			f.mu.Lock()
			state := s.states[i]
			switch state {
			case idle:
				s.states[i] = busy
				s.cursor = i // the rest goes on here, where more may be wanted soon
			case busy:
				s.waiting[i] = append(s.waiting[i], *addr)
			}
			f.mu.Unlock()
			switch state {
			case idle:
				*addr = was
				return i, 0
			case busy:
				return -1, 0
			}
		}
	}
	switch errno := zero(s.uffd, page, f.PageSize); errno {
	case 0:
	case unix.EEXIST, unix.ENOENT: // it has come meanwhile, or is no memory any more: the process that waits shall look again
		wake(s.uffd, page, page+f.PageSize)
	default:
		return -1, errno
	}
	return -1, 0
}

// load reads a piece and fills it in, and tells how many bytes that were. first is an address that a process waits for, or 0.
func (f *Filler) load(ctx context.Context, r Reader, s *space, piece int, first uint64) (int, error) {
	p := s.layout.Pieces[piece]
	s.mem.RLock()
	shows := s.shows(p)
	s.mem.RUnlock()
	if !shows {
		return 0, nil
	}
	data, err := r.Read(ctx, s.pid, piece)
	if err != nil {
		return 0, err
	}
	var want uint64
	for _, e := range p {
		want += e.Length
	}
	if uint64(len(data)) != want {
		return 0, fmt.Errorf("fill process %d: the source gives %d bytes for %d at %#x", s.pid, len(data), want, p[0].Addr)
	}
	return len(data), f.fill(ctx, s, p, data, first)
}

// finish notes that a piece is there. A process that waited for it is answered again: it may have waited for a page that is not in it any more.
func (f *Filler) finish(s *space, piece int) error {
	f.mu.Lock()
	s.states[piece] = done
	s.left--
	if waiting := s.waiting[piece]; waiting != nil {
		for _, addr := range waiting {
			f.faults = append(f.faults, fault{s, addr})
		}
		delete(s.waiting, piece)
		f.change.Broadcast() // for nothing else: each worker looks through all there is
	}
	complete := f.restored && s.left == 0
	f.mu.Unlock()
	if complete {
		return f.close(s)
	}
	return nil
}

// slow waits so that no more is filled than the rate allows.
func (f *Filler) slow(ctx context.Context, n int) error {
	if f.Rate <= 0 {
		return nil
	}
	f.pace.Lock()
	now := time.Now()
	if f.pace.next.Before(now) {
		f.pace.next = now
	}
	f.pace.next = f.pace.next.Add(time.Duration(float64(n) / float64(f.Rate) * float64(time.Second)))
	until := f.pace.next
	f.pace.Unlock()
	return f.pause(ctx, max(time.Until(until), 1))
}
