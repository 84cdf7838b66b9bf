package main

import (
	"bufio"
	"encoding/json"
	"io"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/shim/worker"
)

// groupProtocol is the version of the messages.
const groupProtocol = 1

// groupMessage is a line of JSON between a coordinator and a member; see GROUPS.md. An empty one is a sign of life.
type groupMessage struct {
	// The coordinator's.
	Ask        *groupAsk        `json:"ask,omitempty"`        // the first
	Permit     worker.Step      `json:"permit,omitempty"`     // the member may go on from this step
	Together   *worker.Together `json:"together,omitempty"`   // with the permission to go on from Admitted, and from worker.Placed
	Publishing *groupIndex      `json:"publishing,omitempty"` // this is about to be published
	Abandoned  bool             `json:"abandoned,omitempty"`  // nothing was published, nor will be

	// The member's.
	Reached   *worker.Reached  `json:"reached,omitempty"`
	Addresses []string         `json:"addresses,omitempty"` // with the steps Admitted and worker.Placed: of the container's network
	Progress  *worker.Progress `json:"progress,omitempty"`
	Warning   string           `json:"warning,omitempty"`
	Done      json.RawMessage  `json:"done,omitempty"` // a [save.Result], or a [restore.Result]
	Failed    *failure.Error   `json:"failed,omitempty"`
	State     *worker.State    `json:"state,omitempty"` // with Failed: of the container; nil: as before
}

// groupIndex is an index that lists the snapshots of a group.
type groupIndex struct {
	Ref    string        `json:"ref"`
	Digest digest.Digest `json:"digest"`
}

// groupAsk is what a member is asked to do.
type groupAsk struct {
	Protocol   int              `json:"protocol"`
	Namespace  string           `json:"namespace"` // of containerd
	Registry   worker.Registry  `json:"registry"`
	Progress   bool             `json:"progress,omitempty"`
	Checkpoint *groupCheckpoint `json:"checkpoint,omitempty"`
	Restore    *groupRestore    `json:"restore,omitempty"`
}

// groupCheckpoint is a member's checkpoint; fields are as in [save.Options].
type groupCheckpoint struct {
	Container           string        `json:"container"`
	Ref                 string        `json:"ref"` // of the member's own snapshot
	LeaveRunning        bool          `json:"leaveRunning,omitempty"`
	FileLocks           bool          `json:"fileLocks,omitempty"`
	ExternalUnixSockets bool          `json:"externalUnixSockets,omitempty"`
	ReadyTimeout        time.Duration `json:"readyTimeout,omitempty"` // nanoseconds
	Parent              string        `json:"parent,omitempty"`
	Compression         string        `json:"compression"`
	SegmentSize         int64         `json:"segmentSize,omitempty"`
	GPUTimeout          time.Duration `json:"gpuTimeout,omitempty"` // nanoseconds
	GPUEngine           string        `json:"gpuEngine,omitempty"`
	Force               []string      `json:"force,omitempty"`
	Discard             bool          `json:"discard,omitempty"`
}

// groupRestore is a member's restore.
type groupRestore struct {
	Ref     string         `json:"ref"`            // REPOSITORY@DIGEST of the member's snapshot
	Name    string         `json:"name,omitempty"` // of the container; empty: as it was
	Choices worker.Choices `json:"choices"`
}

const (
	tickTime   = time.Second      // between two signs of life
	silentTime = 15 * time.Second // after which the other end counts as gone
	maxLine    = 4 << 20          // bytes of a message
)

// groupLine is one end of the connection between a coordinator and a member.
type groupLine struct {
	received chan groupMessage // closed when the other end has closed the connection, is silent, or sends anything else
	outgoing chan groupMessage
	closed   chan struct{} // closed by close
	flushed  chan struct{} // closed when all was written, or cannot be
	closing  sync.Once
}

// openLine begins to read and to write. closeWriter is called when all was written.
func openLine(from io.Reader, to io.Writer, closeWriter func()) *groupLine {
	l := newLine()
	go l.write(to, closeWriter)
	go l.read(from)
	return l
}

func newLine() *groupLine {
	return &groupLine{received: make(chan groupMessage), outgoing: make(chan groupMessage, 256), closed: make(chan struct{}), flushed: make(chan struct{})}
}

// send sends a message. Progress is dropped where the other end does not keep up.
func (l *groupLine) send(m groupMessage) {
	if m.Progress != nil {
		select {
		case l.outgoing <- m:
		default:
		}
		return
	}
	select {
	case l.outgoing <- m:
	case <-l.closed:
	}
}

// close closes this end, after what was sent. The other end is still heard.
func (l *groupLine) close() { l.closing.Do(func() { close(l.closed) }) }

func (l *groupLine) write(to io.Writer, closeWriter func()) {
	defer close(l.flushed)
	defer closeWriter()
	lines, broken := json.NewEncoder(to), false
	tick := time.NewTicker(tickTime)
	defer tick.Stop()
	put := func(m groupMessage) {
		if !broken {
			broken = lines.Encode(m) != nil // the reader hears that the other end is gone
		}
	}
	l.drain(put, tick.C)
}

// drain puts what is sent, and an empty message at each tick, until this end is closed.
func (l *groupLine) drain(put func(groupMessage), tick <-chan time.Time) {
	for {
		select {
		case m := <-l.outgoing:
			put(m)
		case <-tick:
			put(groupMessage{})
		case <-l.closed:
			for len(l.outgoing) > 0 {
				put(<-l.outgoing)
			}
			return
		}
	}
}

func (l *groupLine) read(from io.Reader) {
	defer close(l.received)
	heard := make(chan groupMessage)
	go func() {
		defer close(heard)
		lines := bufio.NewScanner(from)
		lines.Buffer(nil, maxLine)
		for lines.Scan() {
			var m groupMessage
			if json.Unmarshal(lines.Bytes(), &m) != nil {
				return
			}
			heard <- m
		}
	}()
	silence := time.NewTimer(silentTime)
	for {
		select {
		case m, ok := <-heard:
			if !ok {
				return
			}
			silence.Reset(silentTime)
			l.received <- m
		case <-silence.C:
			go func() {
				for range heard { // the reader ends with the connection
				}
			}()
			return
		}
	}
}
