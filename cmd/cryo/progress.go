package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/shim/config"
	"github.com/cryo-project/cryo/shim/restore"
)

// stalled is how long nothing moves before the line says what for.
const stalled = time.Second

// How --progress has progress shown.
const (
	progressAuto = "auto" // one line that is drawn anew, on a terminal; else nothing
	progressJSON = "json" // a line of JSON for each change
	progressNone = "none"
)

// progress shows on standard error how far a long operation is.
type progress struct {
	json   bool // for programs
	mu     sync.Mutex
	tasks  []*activity              // guarded by mu; what is under way, in the order in which it began
	waits  map[string]func() string // guarded by mu; what a stalled activity waits for, by its name
	timer  *time.Timer              // guarded by mu; draws again when nothing moves
	drawn  time.Time                // guarded by mu
	ended  bool                     // guarded by mu
	output io.Writer                // guarded by mu; nil: not drawn yet
}

// activity is one part of an operation; several may be under way at once.
type activity struct {
	what              string
	start, moved      time.Time
	base, done, total int64 // bytes: there when it started, there now, expected (0: not known)
	over              bool
	told              progressLine // the last
}

// progressLine is what programs are told of an activity.
type progressLine struct {
	Activity string `json:"activity"`
	Done     int64  `json:"bytesDone"`
	Total    int64  `json:"bytesTotal,omitempty"` // 0: not known
	WaitsFor string `json:"waitsFor,omitempty"`   // what it waits for, while no byte comes
	Ended    bool   `json:"ended,omitempty"`
}

// report returns the callback for a long operation; nil where no user looks.
func (a *app) report() image.Progress {
	f, ok := a.stderr.(*os.File)
	if a.showProgress == progressNone || a.showProgress != progressJSON && (!ok || !term.IsTerminal(int(f.Fd()))) {
		return nil
	}
	return func(what string, done, total int64) { a.progress.draw(a.stderr, what, done, total, time.Now()) }
}

// hooks show how far a checkpoint or a restore is.
func (a *app) hooks() restore.Hooks {
	return restore.Hooks{Progress: a.report(), Ended: a.progress.over, WaitsFor: a.progress.waitsFor, Warn: a.warn, Say: a.say}
}

// waitsFor says how to find out what an activity waits for while it does not move.
func (p *progress) waitsFor(what string, why func() string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waits == nil {
		p.waits = make(map[string]func() string)
	}
	p.waits[what] = why
}

// over says that an activity whose end cannot be seen from its numbers has ended.
func (p *progress) over(what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.tasks {
		t.over = t.over || t.what == what
	}
}

func (p *progress) draw(w io.Writer, what string, done, total int64, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return
	}
	t := p.task(what, done, now)
	if done > t.done {
		t.done, t.moved = done, now // reports may overtake each other
	}
	t.total = total
	if now.Sub(p.drawn) < 100*time.Millisecond && done != total {
		return
	}
	p.paint(w, now)
}

// task finds an activity, or begins it.
func (p *progress) task(what string, done int64, now time.Time) *activity {
	for _, t := range p.tasks {
		if t.what == what {
			return t
		}
	}
	t := &activity{what: what, start: now, moved: now, base: done, done: done}
	p.tasks = append(p.tasks, t)
	return t
}

// paint shows what is under way, or what has ended last.
func (p *progress) paint(w io.Writer, now time.Time) {
	var parts []string
	for i, t := range p.tasks {
		ended := t.over || t.total > 0 && t.done >= t.total
		waitsFor := ""
		if why := p.waits[t.what]; why != nil && !ended && now.Sub(t.moved) >= stalled {
			waitsFor = why()
		}
		if p.json {
			t.tell(w, progressLine{t.what, t.done, t.total, waitsFor, ended})
			continue
		}
		if ended && (len(parts) > 0 || i < len(p.tasks)-1) {
			continue
		}
		text := line(t.what, t.done, t.total, t.done-t.base, now.Sub(t.start))
		if waitsFor != "" {
			text = line(t.what, t.done, t.total, 0, 0) + "  waits for " + waitsFor
		}
		parts = append(parts, text)
	}
	p.drawn, p.output = now, w
	if !p.json {
		fmt.Fprintf(w, "\r\033[K%s", strings.Join(parts, "   "))
	}
	if p.timer == nil {
		p.timer = time.AfterFunc(stalled, p.again)
	} else {
		p.timer.Reset(stalled)
	}
}

// tell prints a line, unless it is the last one again.
func (t *activity) tell(w io.Writer, l progressLine) {
	if l == t.told {
		return
	}
	t.told = l
	if data, err := json.Marshal(l); err == nil {
		fmt.Fprintf(w, "%s\n", data)
	}
}

// again draws when nothing has moved for a while.
func (p *progress) again() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.ended && p.output != nil {
		p.paint(p.output, time.Now())
	}
}

// line is what the user sees: how much of how much, and how fast.
func line(what string, done, total, moved int64, took time.Duration) string {
	text := fmt.Sprintf("%s %s", what, config.Size(done))
	if total > 0 {
		text = fmt.Sprintf("%s %3d %%  %s of %s", what, min(100, 100*done/total), config.Size(done), config.Size(total))
	}
	if took > time.Second/2 {
		text += fmt.Sprintf("  %s/s", config.Size(int64(float64(moved)/took.Seconds())))
	}
	return text
}

// clear takes the line away, for something else to be printed.
func (p *progress) clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.output != nil && !p.json {
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
	if p.timer != nil {
		p.timer.Stop()
	}
}
