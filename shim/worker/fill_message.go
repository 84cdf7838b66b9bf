package worker

import (
	"fmt"
	"io"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/runtime/channel"
)

// message is what the two processes tell each other. One of its members is there.
type message struct {
	// The shim's.
	Task     *task `json:"task,omitempty"`     // with its userfaultfd
	Restored bool  `json:"restored,omitempty"` // all tasks run
	// The server's.
	Ready  bool           `json:"ready,omitempty"`  // all that is needed is open
	Taken  bool           `json:"taken,omitempty"`  // all tasks are known, and no file of the images is needed any more
	Hold   int            `json:"hold,omitempty"`   // a number, with the userfaultfd of a child that was forked
	Drop   int            `json:"drop,omitempty"`   // the number of a task or child that needs nothing any more
	There  *MemoryNote    `json:"there,omitempty"`  // how much memory is there by now
	Result *FillResult    `json:"result,omitempty"` // nothing is missing any more; the last
	Failed *failure.Error `json:"failed,omitempty"` // the last
}

// task is a process that CRIU has restored.
type task struct {
	ID   int `json:"id"`
	PID  int `json:"pid"`            // in the images
	Host int `json:"host,omitempty"` // here
}

// FillResult says what was done.
type FillResult struct {
	Bytes   int64   `json:"bytes"`
	Seconds float64 `json:"seconds"` // since all tasks run
	Peak    int64   `json:"peak"`    // memory of the process that did it, bytes
}

// link is one end of the channel between the two processes.
type link struct{ *channel.Channel }

// await waits until the other end is closed, and takes what comes meanwhile. Closing before would take away what was sent last, where
// something has come that was not read (ECONNRESET).
func (l link) await() {
	for {
		_, fd, err := l.receive()
		if err != nil {
			return
		}
		if fd >= 0 {
			channel.Close([]int{fd})
		}
	}
}

// receive returns the next message, and the descriptor that came with it, or -1. io.EOF: the other end is closed.
func (l link) receive() (m message, fd int, err error) {
	fds, err := l.Receive(&m)
	switch {
	case err != nil:
		return m, -1, err
	case len(fds) == 0:
		return m, -1, nil
	case len(fds) > 1:
		channel.Close(fds)
		return m, -1, fmt.Errorf("receive from the other process: %d descriptors: %w", len(fds), io.ErrUnexpectedEOF)
	}
	return m, fds[0], nil
}
