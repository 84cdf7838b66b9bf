package fill

import (
	"context"
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
	// Workers is how many fill at a time what no process waits for. 0: as many as there are cores, up to 16.
	Workers int
	// Rate bounds how many bytes a second are filled that no process waits for. 0: nothing does.
	Rate int64
	// Next gives the first piece from one on that can be read without waiting, or -1. What no process waits for is filled when it can; Arrived
	// says that there may be more. nil: all can. It must be quick.
	Next func(pid, from int) int
	// Urgent is how many workers do nothing but what a process waits for. 0: one.
	Urgent int
	// Calm is for how long no process may have waited for a page, after all tasks run, before the rest is begun: until then it would take
	// cores from what makes them answer. After CalmLimit it is begun in any case. 0: at once.
	Calm time.Duration
	// Hold has another process hold the userfaultfd of a child that was forked, and gives its number.
	Hold func(uffd int) (id int, err error)
	// Drop tells that the process with that number needs nothing any more, so that others let go of its userfaultfd.
	Drop func(id int)

	mu       sync.Mutex
	change   *sync.Cond     // of what mu guards
	epoll    int            // guarded by mu; 0: not running
	bell     int            // an eventfd that has listen look what there is; guarded by mu, valid while running
	spaces   []*space       // in the order in which they are filled; guarded by mu
	byID     map[int]*space // guarded by mu
	faults   []fault        // oldest first; guarded by mu
	huge     []*huge        // guarded by mu
	restored bool           // all tasks were added, and run; guarded by mu
	calm     bool           // the rest has begun; guarded by mu
	arrived  int            // how often Arrived was called; guarded by mu
	heard    time.Time      // when a process was found waiting last; guarded by mu
	ended    chan struct{}  // closed when there is nothing to do any more
	end      sync.Once      // closes ended

	filled atomic.Int64 // bytes
	total  atomic.Int64 // bytes that CRIU has left out
	pace   struct {
		sync.Mutex
		next time.Time // when more may be filled
	}
}

// maxWorkers bounds memory: each worker has some MiB.
const maxWorkers = 16

// CalmLimit is the longest for which the rest waits for what a process waits for.
const CalmLimit = 500 * time.Millisecond

// fault is a page that a process waits for.
type fault struct {
	space *space
	addr  uint64
}

// NewFiller returns a filler of pages of the host's size.
func NewFiller(source Source) *Filler {
	f := &Filler{Source: source, PageSize: uint64(os.Getpagesize()), byID: make(map[int]*space), ended: make(chan struct{})}
	f.change = sync.NewCond(&f.mu)
	return f
}

// Filled is how many bytes were read from the source and filled so far.
func (f *Filler) Filled() int64 { return f.filled.Load() }

// Total is how many bytes CRIU has left out of the memory of all processes that were added.
func (f *Filler) Total() int64 { return f.total.Load() }

// Add adds a process, and closes its userfaultfd some time. The number, 1 or more, is what Drop gets.
func (f *Filler) Add(id int, t Task) error {
	layout, err := f.Source.Layout(t.PID)
	if err != nil {
		_ = unix.Close(t.UFFD)
		return err
	}
	for _, piece := range layout.Pieces {
		for _, e := range piece {
			f.total.Add(int64(e.Length))
		}
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

// Restored says that all tasks were added and run. Before that, only what a process waits for is filled, since the restorer
// still arranges the memory.
func (f *Filler) Restored() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.restored, f.heard = true, time.Now()
	f.ring()
	f.settle(time.Now().Add(CalmLimit))
}

// settle begins with the rest, or looks again later. f.mu is held.
func (f *Filler) settle(limit time.Time) {
	wait := min(time.Until(f.heard.Add(f.Calm)), time.Until(limit))
	if wait <= 0 {
		f.calm = true
		f.change.Broadcast()
		return
	}
	time.AfterFunc(wait, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if !f.stopped() {
			f.settle(limit)
		}
	})
}

// ring has listen look at once. f.mu is held.
func (f *Filler) ring() {
	if f.epoll != 0 {
		_, _ = unix.Write(f.bell, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // it fails only if it rings already
	}
}

// Arrived says that there may be more of what Next was asked for.
func (f *Filler) Arrived() {
	f.mu.Lock()
	f.arrived++
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
	bell, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return fmt.Errorf("listen to processes: %w", err)
	}
	defer unix.Close(bell)
	if err := unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, bell, &unix.EpollEvent{Events: unix.EPOLLIN}); err != nil {
		return fmt.Errorf("listen to processes: %w", err)
	}
	f.mu.Lock()
	f.epoll, f.bell = epoll, bell
	f.ring() // Restored may have been called
	for _, s := range f.spaces {
		if err = f.watch(s); err != nil {
			break
		}
	}
	f.mu.Unlock()
	if err != nil {
		return err
	}
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
	// More have nothing to do with the rest: a process that waits for a page shall not wait for a worker too.
	for range max(f.Urgent, 1) {
		g.Go(func() error { return f.work(ctx, false) })
	}
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
