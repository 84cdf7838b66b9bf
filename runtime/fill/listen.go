package fill

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// listenTime is how often it is looked for processes that have ended, which the kernel does not tell.
const listenTime = 200 * time.Millisecond

// listen hears what the kernel has to say about all processes.
func (f *Filler) listen(ctx context.Context) error {
	events := make([]unix.EpollEvent, 64)
	var looked time.Time
	for {
		n, err := unix.EpollWait(f.epoll, events, int(listenTime/time.Millisecond))
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("listen to processes: %w", err)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		for _, e := range events[:max(n, 0)] {
			if e.Fd == 0 { // the bell
				_, _ = unix.Read(f.bell, make([]byte, 8)) // it rings, so it can be read
				looked = time.Time{}
				continue
			}
			f.mu.Lock()
			s := f.byID[int(e.Fd)]
			f.mu.Unlock()
			if s == nil {
				continue
			}
			s.mem.Lock()
			err := f.hear(s)
			s.mem.Unlock()
			if err != nil {
				return err
			}
		}
		if time.Since(looked) >= listenTime {
			looked = time.Now()
			f.look()
		}
		if f.complete() {
			f.stop()
			return nil
		}
	}
}

// complete reports whether nothing is missing anywhere.
func (f *Filler) complete() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.restored && len(f.spaces) == 0
}

// hear takes in what the kernel says about a process. s.mem is held for writing.
func (f *Filler) hear(s *space) error {
	return s.listen(func(addr uint64) {
		f.mu.Lock()
		f.faults = append(f.faults, fault{s, addr})
		f.change.Broadcast()
		f.mu.Unlock()
	}, func(uffd int) error {
		id, err := f.Hold(uffd)
		if err != nil {
			return err
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.add(s.child(id, uffd))
	})
}

// look closes what is complete, and what belongs to processes that have ended.
func (f *Filler) look() {
	for _, s := range f.all() {
		f.mu.Lock()
		complete := f.restored && s.left == 0
		f.mu.Unlock()
		if complete || s.gone(f.PageSize) {
			_ = f.close(s) // whatever is wrong is met again at the next message
		}
	}
}

// close ends the filling of a process that misses nothing any more, or is gone.
func (f *Filler) close(s *space) error {
	s.mem.Lock()
	defer s.mem.Unlock()
	if s.closed {
		return nil
	}
	// A child that was forked just now misses what its parent did.
	if err := f.hear(s); err != nil && !gone(s.uffd, f.PageSize) {
		return err
	}
	s.closed = true
	f.mu.Lock()
	if f.epoll != 0 { // closing alone does not do it: it is open elsewhere too
		_ = unix.EpollCtl(f.epoll, unix.EPOLL_CTL_DEL, s.uffd, nil)
	}
	_ = unix.Close(s.uffd)
	delete(f.byID, s.id)
	f.spaces = slices.DeleteFunc(f.spaces, func(other *space) bool { return other == s })
	f.ring()
	f.mu.Unlock()
	f.Drop(s.id)
	return nil
}

// Outlive waits until all processes have ended that miss something still, after Run has failed: letting go of them before would
// have them go on with zeros.
func (f *Filler) Outlive() {
	for slices.ContainsFunc(f.all(), func(s *space) bool { return !s.gone(f.PageSize) }) {
		time.Sleep(listenTime)
	}
}

// all are the spaces there are.
func (f *Filler) all() []*space {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.spaces)
}
