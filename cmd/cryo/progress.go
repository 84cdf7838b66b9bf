package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/cryo-project/cryo/image"
)

// progress draws one line on standard error while it is a terminal, and nothing otherwise.
type progress struct {
	mu     sync.Mutex
	what   string    // guarded by mu
	start  time.Time // guarded by mu; of what
	base   int64     // guarded by mu; bytes that were there when what started
	drawn  time.Time // guarded by mu
	ended  bool      // guarded by mu
	output io.Writer // guarded by mu; nil: not drawn yet
}

// report gives the callback for a long operation; nil where nobody looks.
func (a *app) report() image.Progress {
	f, ok := a.stderr.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return nil
	}
	return func(what string, done, total int64) { a.progress.draw(f, what, done, total, time.Now()) }
}

func (p *progress) draw(w io.Writer, what string, done, total int64, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if what != p.what {
		p.what, p.start, p.base, p.drawn = what, now, done, time.Time{}
	}
	if p.ended || now.Sub(p.drawn) < 100*time.Millisecond && done != total {
		return
	}
	p.drawn, p.output = now, w
	fmt.Fprintf(w, "\r\033[K%s", line(what, done, total, done-p.base, now.Sub(p.start)))
}

// line is what the user sees: how much of how much, and how fast.
func line(what string, done, total, moved int64, took time.Duration) string {
	text := fmt.Sprintf("%s %s", what, size(done))
	if total > 0 {
		text = fmt.Sprintf("%s %3d %%  %s of %s", what, min(100, 100*done/total), size(done), size(total))
	}
	if took > time.Second/2 {
		text += fmt.Sprintf("  %s/s", size(int64(float64(moved)/took.Seconds())))
	}
	return text
}

// clear takes the line away, for something else to be printed.
func (p *progress) clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.output != nil {
		fmt.Fprint(p.output, "\r\033[K")
		p.output, p.drawn = nil, time.Time{}
	}
}

// stop takes the line away for good.
func (p *progress) stop() {
	p.clear()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
}
