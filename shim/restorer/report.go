package restorer

import (
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/spec/failure"
)

// News is what the command that has made the container hears of its restore, one a line of the report. One of its members is there; in the first line, none.
type News struct {
	// Result: the container runs, or the snapshot was tried. It comes a second time when all memory is in the local store.
	Result   json.RawMessage `json:"result,omitempty"`
	Progress *Progress       `json:"progress,omitempty"`
	Log      string          `json:"log,omitempty"` // for debugging
	Failed   *failure.Error  `json:"failed,omitempty"`
	RunsOn   bool            `json:"runsOn,omitempty"` // Failed does no harm to the container
}

// Progress is how far a part of the work is, bytes; see [image.Progress].
type Progress struct {
	What  string `json:"what"`
	Done  int64  `json:"done"`
	Total int64  `json:"total"`
}

// Report is the restore process's end of a report: a FIFO that a command reads.
type Report struct {
	mu sync.Mutex
	to *os.File
}

// OpenReport opens the FIFO. It returns an error where no command reads.
func OpenReport(path string) (*Report, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("report to the command: %w", err)
	}
	r := &Report{to: f}
	r.Tell(News{}) // the command knows then what the end of the FIFO means
	return r, nil
}

// Tell writes news. Progress is dropped where the command does not keep up, and all is where it has ended. nil reports nothing.
func (r *Report) Tell(n News) {
	if r == nil {
		return
	}
	if n.Progress == nil {
		r.mu.Lock()
	} else if !r.mu.TryLock() {
		return
	}
	defer r.mu.Unlock()
	data, err := json.Marshal(n)
	if err != nil {
		return
	}
	_ = r.to.SetWriteDeadline(time.Now().Add(lastTime))
	_, _ = r.to.Write(append(data, '\n'))
}

// Left returns when no command reads any more.
func (r *Report) Left() {
	raw, err := r.to.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		for {
			// Of a pipe that no process reads, poll says so whatever it is asked.
			_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd)}}, -1)
			if err != unix.EINTR { //nolint:errorlint // it is never wrapped
				return
			}
		}
	})
}
