package direct

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Behind writes files through the page cache, for those who read what was written a moment ago: they find it in memory, and the disk comes
// behind. It begins at once, unless it shall be later, and who writes waits for it when too much is not on the disk yet: a slow disk shall not
// fill the memory.
type Behind struct {
	room int64 // bytes

	mu      sync.Mutex
	change  *sync.Cond // of what follows, and of what it guards of each file
	waiting int64      // bytes that are written and not on the disk; guarded by mu
	short   int        // writers that wait for room; guarded by mu
	later   bool       // see Later; guarded by mu
}

// NewBehind lets so many bytes wait for the disk, in all files together.
func NewBehind(room int64) *Behind {
	b := &Behind{room: room}
	b.change = sync.NewCond(&b.mu)
	return b
}

// Later has the disk left to others for so long, or until Hurry, while no more than half of the room is taken. A kernel that finds too much
// waiting begins all the same.
func (b *Behind) Later(d time.Duration) {
	b.mu.Lock()
	b.later = true
	b.mu.Unlock()
	time.AfterFunc(d, b.Hurry)
}

// Hurry begins to bring to the disk what waits. It may be called on nil.
func (b *Behind) Hurry() {
	if b == nil {
		return
	}
	b.mu.Lock()
	b.later = false
	b.change.Broadcast()
	b.mu.Unlock()
}

// patient says whether what waits may go on waiting. b.mu is held.
func (b *Behind) patient() bool { return b.later && b.short == 0 && b.waiting <= b.room/2 }

// How much of a file is brought to the disk at a time: less only at its end, and where a writer waits for room.
const (
	behindLeast = 8 * Piece
	behindMost  = 32 * Piece
)

// BehindFile is a file that is written from its begin to its end, by one goroutine.
type BehindFile struct {
	b    *Behind
	f    *os.File
	sync func(fd int, off, n int64) error // a test's
	done chan struct{}                    // closed when nobody brings it to the disk any more

	// guarded by the mu of b
	end     int64 // what is written
	synced  int64 // what is on the disk of that
	ending  bool  // no more will be written
	dropped bool  // nobody cares for what is not on the disk
	err     error
}

// File goes on with a file that has off bytes. The caller must call Close, before f is closed.
func (b *Behind) File(f *os.File, off int64) *BehindFile {
	return b.file(f, off, syncRange)
}

func (b *Behind) file(f *os.File, off int64, sync func(int, int64, int64) error) *BehindFile {
	w := &BehindFile{b: b, f: f, end: off, synced: off, sync: sync, done: make(chan struct{})}
	go w.follow()
	return w
}

// syncRange writes a part of a file to the disk, which is not to make it durable: see sync_file_range(2).
func syncRange(fd int, off, n int64) error {
	err := unix.SyncFileRange(fd, off, n, unix.SYNC_FILE_RANGE_WAIT_BEFORE|unix.SYNC_FILE_RANGE_WRITE|unix.SYNC_FILE_RANGE_WAIT_AFTER)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil // the kernel writes when it likes
	}
	return os.NewSyscallError("sync_file_range", err)
}

// Write implements [io.Writer]. An error may be that of bringing earlier bytes to the disk.
func (w *BehindFile) Write(p []byte) (int, error) {
	off, err := w.take(int64(len(p)))
	if err != nil {
		return 0, err
	}
	n, err := w.f.WriteAt(p, off)
	b := w.b
	b.mu.Lock()
	defer b.mu.Unlock()
	w.end += int64(n)
	b.waiting -= int64(len(p) - n)
	b.change.Broadcast()
	return n, err
}

// take waits for room, and tells where to write.
func (w *BehindFile) take(n int64) (off int64, _ error) {
	b := w.b
	b.mu.Lock()
	defer b.mu.Unlock()
	b.short++
	for w.err == nil && b.waiting > 0 && b.waiting+n > b.room {
		b.change.Broadcast()
		b.change.Wait()
	}
	b.short--
	if w.err == nil {
		b.waiting += n
	}
	return w.end, w.err
}

// follow brings to the disk what is written.
func (w *BehindFile) follow() {
	defer close(w.done)
	b := w.b
	b.mu.Lock()
	defer b.mu.Unlock()
	for {
		n := w.end - w.synced
		switch {
		case w.dropped || w.ending && n == 0:
			b.waiting -= n
			b.change.Broadcast()
			return
		case n == 0 || b.patient() || n < behindLeast && !w.ending && b.short == 0:
			b.change.Wait()
			continue
		}
		off, n := w.synced, min(n, behindMost)
		b.mu.Unlock()
		err := w.sync(int(w.f.Fd()), off, n)
		b.mu.Lock()
		if w.err == nil {
			w.err = err
		}
		w.synced += n
		b.waiting -= n
		b.change.Broadcast()
	}
}

// Flush waits until all is on the disk, as long as ctx allows. Nothing is durable by that, and nothing may be written any more.
func (w *BehindFile) Flush(ctx context.Context) error {
	w.stop(false)
	select {
	case <-w.done:
		return w.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Close gives up what is not on the disk yet: the kernel brings it there some time.
func (w *BehindFile) Close() {
	w.stop(true)
	<-w.done
}

func (w *BehindFile) stop(drop bool) {
	w.b.mu.Lock()
	defer w.b.mu.Unlock()
	w.ending = true
	w.dropped = w.dropped || drop
	w.b.change.Broadcast()
}
