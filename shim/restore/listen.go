package restore

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/spec/failure"
	"github.com/cryo-project/cryo/shim/daemon"
	"github.com/cryo-project/cryo/shim/restorer"
)

// openTime is how long is between two looks whether a process has opened the FIFO.
const openTime = 10 * time.Millisecond

// listener is the command's end of the report of the restore process.
type listener struct {
	path string
	c    Command

	mu      sync.Mutex
	from    *os.File
	heard   bool           // a process has reported something; guarded by mu
	last    *Result        // guarded by mu
	ran, at time.Time      // when the first result came, and the last; guarded by mu
	failed  *failure.Error // guarded by mu
	runsOn  bool           // failed does no harm to the container; guarded by mu
	ended   bool           // the process has ended, or the command listens no more; guarded by mu
	changed chan struct{}  // closed when one of these changes
}

// listen makes a FIFO in the directory dir, and passes on what comes from it.
func listen(dir string, c Command) (*listener, error) {
	l := &listener{path: filepath.Join(dir, "report"), c: c, changed: make(chan struct{})}
	err := unix.Mkfifo(l.path, 0o600)
	if err == nil {
		l.from, err = os.OpenFile(l.path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	}
	if err != nil {
		return nil, fmt.Errorf("listen to the restore process: %w", err)
	}
	go l.hear()
	return l, nil
}

// close calls the restore off, unless the container runs. nil does not listen.
func (l *listener) close() {
	if l != nil {
		_ = l.from.Close() // it may be closed
	}
}

// hear reads the report. Until a process has opened the FIFO, there is nothing to read. Another process takes its place where containerd is restarted before the container runs.
func (l *listener) hear() {
	r := bufio.NewReader(l.from)
	var line []byte
	for {
		part, err := r.ReadBytes('\n')
		line = append(line, part...)
		switch {
		case err == nil:
			l.note(line)
			line = nil
		case errors.Is(err, io.EOF):
			l.set(func() { l.ended = l.heard })
			time.Sleep(openTime)
		default:
			l.set(func() { l.ended = true })
			return
		}
	}
}

// set makes a change, and wakes those that wait for one.
func (l *listener) set(change func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change()
	close(l.changed)
	l.changed = make(chan struct{})
}

// note passes on one line.
func (l *listener) note(line []byte) {
	var n restorer.News
	if err := json.Unmarshal(line, &n); err != nil {
		return // of a process that has died
	}
	var result *Result
	if n.Result != nil {
		if err := json.Unmarshal(n.Result, &result); err != nil {
			return
		}
	}
	switch {
	case n.Progress != nil && l.c.Progress != nil:
		l.c.Progress(n.Progress.What, n.Progress.Done, n.Progress.Total)
	case n.Log != "" && l.c.Debug != nil:
		l.c.Debug(n.Log)
	}
	l.set(func() {
		l.heard, l.ended = true, false
		if n.Failed != nil {
			l.failed, l.runsOn = n.Failed, n.RunsOn
		}
		if result != nil {
			l.last, l.at = result, time.Now()
			if l.ran.IsZero() {
				l.ran = l.at
			}
		}
	})
}

// await waits for a result that is wanted, and returns it, or why none comes.
func (l *listener) await(ctx context.Context, is func(*Result) bool) (*Result, error) {
	for {
		l.mu.Lock()
		last, failed, ended, changed := l.last, l.failed, l.ended, l.changed
		l.mu.Unlock()
		switch {
		case last != nil && is(last):
			r := *last
			return &r, nil
		case failed != nil:
			return nil, failed
		case ended:
			return nil, restorer.ErrDied
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

const (
	// lastWordTime bounds how long the command waits for the end of a restore process that has failed.
	lastWordTime = 5 * time.Second
	// firstWordTime bounds how long the command waits for the first line of the report.
	firstWordTime = 5 * openTime
)

// because returns what the restore process has said of a failure, or that it has died without a word, else err. The shim has ended the process before it answers.
func (l *listener) because(ctx context.Context, err error) error {
	waiting, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastWordTime)
	defer cancel()
	unheard := time.AfterFunc(firstWordTime, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if !l.heard {
			cancel()
		}
	})
	defer unheard.Stop()
	_, said := l.await(waiting, func(*Result) bool { return false })
	if waiting.Err() != nil || errors.Is(said, restorer.ErrDied) && (daemon.ShimGone(err) || daemon.Gone(err)) { // it ends with its shim
		return err
	}
	return said
}

// tried reports whether a snapshot was tried, and could be restored.
func (l *listener) tried() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last != nil
}

// isHarmless reports whether what has failed does no harm to the container.
func (l *listener) isHarmless() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.runsOn
}

// since returns how long it has taken until the container ran, and until the last result, seconds.
func (l *listener) since(begun time.Time) (running, pulled float64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ran.Sub(begun).Seconds(), l.at.Sub(begun).Seconds()
}
