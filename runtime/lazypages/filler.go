package lazypages

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// Filler fills the memory of processes.
type Filler struct {
	Source   Source
	PageSize uint64
	// Workers is how many fill at a time what nobody waits for. 0: as many as there are cores, up to 16.
	Workers int
	// Rate bounds how many bytes a second are filled that nobody waits for. 0: nothing does.
	Rate int64
	// Hold has another process hold the userfaultfd of a child that was forked, and gives its number.
	Hold func(uffd int) (id int, err error)
	// Drop tells that the process with that number needs nothing any more, so that others let go of its userfaultfd.
	Drop func(id int)

	mu       sync.Mutex
	change   *sync.Cond     // of what mu guards
	epoll    int            // guarded by mu; 0: not running
	spaces   []*space       // in the order in which they are filled; guarded by mu
	byID     map[int]*space // guarded by mu
	faults   []fault        // oldest first; guarded by mu
	huge     []*huge        // guarded by mu
	restored bool           // all tasks were added, and run; guarded by mu
	ended    chan struct{}  // closed when there is nothing to do any more
	end      sync.Once      // closes ended

	filled atomic.Int64 // bytes
	pace   struct {
		sync.Mutex
		next time.Time // when more may be filled
	}
}

// maxWorkers bounds memory: each worker has some MiB.
const maxWorkers = 16

// fault is a page that somebody waits for.
type fault struct {
	space *space
	addr  uint64
}

// NewFiller gives a filler of pages of the host's size.
func NewFiller(source Source) *Filler {
	f := &Filler{Source: source, PageSize: uint64(os.Getpagesize()), byID: make(map[int]*space), ended: make(chan struct{})}
	f.change = sync.NewCond(&f.mu)
	return f
}

// Filled is how many bytes were read from the source and filled so far.
func (f *Filler) Filled() int64 { return f.filled.Load() }

// Add adds a process, and closes its userfaultfd some time. The number is what Drop gets.
func (f *Filler) Add(id int, t Task) error {
	layout, err := f.Source.Layout(t.PID)
	if err != nil {
		_ = unix.Close(t.UFFD)
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if h := newHuge(t.Host, &layout); h != nil {
		f.huge = append(f.huge, h)
	}
	return f.add(newSpace(id, t.PID, t.UFFD, &layout))
}

// add takes a space in. f.mu is held.
func (f *Filler) add(s *space) error {
	f.spaces = append(f.spaces, s)
	f.byID[s.id] = s
	f.change.Broadcast()
	if f.epoll == 0 {
		return nil
	}
	return f.watch(s)
}

func (f *Filler) watch(s *space) error {
	if err := unix.EpollCtl(f.epoll, unix.EPOLL_CTL_ADD, s.uffd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(s.id)}); err != nil {
		return fmt.Errorf("listen to process %d: %w", s.pid, err)
	}
	return nil
}

// Restored says that all tasks were added and run. Before that, only what somebody waits for is filled, since the restorer
// still arranges the memory.
func (f *Filler) Restored() {
	f.mu.Lock()
	f.restored = true
	f.change.Broadcast()
	f.mu.Unlock()
}

// Run fills the processes until nothing is missing in any, which it does not say before Restored was called. If it fails, or ctx
// ends, processes wait for ever for what they miss, and must be ended.
func (f *Filler) Run(ctx context.Context) error {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return fmt.Errorf("listen to processes: %w", err)
	}
	defer unix.Close(epoll)
	f.mu.Lock()
	f.epoll = epoll
	for _, s := range f.spaces {
		if err := f.watch(s); err != nil {
			f.mu.Unlock()
			return err
		}
	}
	f.mu.Unlock()
	workers := f.Workers
	if workers <= 0 {
		workers = min(runtime.GOMAXPROCS(0), maxWorkers)
	}
	g, ctx := errgroup.WithContext(ctx)
	stop := context.AfterFunc(ctx, f.stop)
	defer stop()
	g.Go(func() error { return f.listen(ctx) })
	for range workers {
		g.Go(func() error { return f.work(ctx, true) })
	}
	// One more has nothing to do with the rest: who waits for a page shall not wait for a worker too.
	g.Go(func() error { return f.work(ctx, false) })
	err = g.Wait()
	f.mu.Lock()
	f.epoll = 0
	f.mu.Unlock()
	return err
}

// stop ends the workers.
func (f *Filler) stop() {
	f.end.Do(func() {
		f.mu.Lock()
		close(f.ended)
		f.change.Broadcast()
		f.mu.Unlock()
	})
}

func (f *Filler) stopped() bool {
	select {
	case <-f.ended:
		return true
	default:
		return false
	}
}

// listenTime is how often it is looked for processes that have ended, which nobody tells.
const listenTime = 200 * time.Millisecond

// listen hears what the kernel has to say about all processes.
func (f *Filler) listen(ctx context.Context) error {
	events := make([]unix.EpollEvent, 64)
	looked := time.Now()
	for {
		n, err := unix.EpollWait(f.epoll, events, int(listenTime/time.Millisecond))
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("listen to processes: %w", err)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		for _, e := range events[:max(n, 0)] {
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

// complete says whether nothing is missing anywhere.
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
	f.mu.Lock()
	all := append([]*space(nil), f.spaces...)
	f.mu.Unlock()
	for _, s := range all {
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
	_ = unix.Close(s.uffd)
	f.mu.Lock()
	delete(f.byID, s.id)
	for i, other := range f.spaces {
		if other == s {
			f.spaces = append(f.spaces[:i], f.spaces[i+1:]...)
			break
		}
	}
	f.mu.Unlock()
	f.Drop(s.id)
	return nil
}

// Outlive waits until all processes have ended that miss something still, after Run has failed: letting go of them before would
// have them go on with zeros.
func (f *Filler) Outlive() {
	for {
		f.mu.Lock()
		all := append([]*space(nil), f.spaces...)
		f.mu.Unlock()
		ended := true
		for _, s := range all {
			ended = ended && s.gone(f.PageSize)
		}
		if ended {
			return
		}
		time.Sleep(listenTime)
	}
}

// next waits for something to do: what somebody waits for, or a piece of the rest. There is nothing any more if s is nil.
func (f *Filler) next(rest bool) (s *space, addr uint64, piece int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for !f.stopped() {
		if len(f.faults) > 0 {
			first := f.faults[0]
			f.faults = f.faults[1:]
			return first.space, first.addr, -1
		}
		if rest && f.restored {
			for _, s := range f.spaces {
				if i := s.pick(); i >= 0 {
					return s, 0, i
				}
			}
		}
		f.change.Wait()
	}
	return nil, 0, 0
}

// pick gives a piece that nobody has begun with, and begins with it; -1: there is none. The filler's mu is held.
func (s *space) pick() int {
	i := bytes.IndexByte(s.states[s.cursor:], idle)
	if i < 0 {
		s.cursor = 0
		i = bytes.IndexByte(s.states, idle)
	}
	if i < 0 {
		return -1
	}
	i += s.cursor
	s.states[i], s.cursor = busy, i
	return i
}
