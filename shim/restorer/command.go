package restorer

import (
	"fmt"
	"os/exec"
	"time"

	"github.com/cryo-project/cryo/runtime/channel"
)

// Started is a restore process as the command sees it that has started it.
type Started struct {
	// Said are the process's messages. It is closed when the process has ended.
	Said <-chan Message

	channel *channel.Channel
	ended   chan struct{} // closed when the process has ended
}

// Begin starts a restore process, which begins with r at once. The caller calls Close.
func Begin(program *exec.Cmd, r Request) (*Started, error) {
	own, ended, err := start(program)
	if err != nil {
		return nil, fmt.Errorf("start the restore process: %w", err)
	}
	said := make(chan Message)
	p := &Started{Said: said, channel: own, ended: ended}
	go func() {
		defer close(said)
		for {
			var m Message
			fds, err := own.Receive(&m)
			channel.Close(fds) // it sends none
			if err != nil {
				<-ended
				return
			}
			said <- m
		}
	}()
	r.Protocol = protocol
	if err := own.Send(Message{Request: &r}); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// HangUp tells the process that nobody wants a container any more, unless that runs.
func (p *Started) HangUp() { _ = p.channel.HangUp() }

// Await waits for the process's end, though not for ever.
func (p *Started) Await(patience time.Duration) {
	select {
	case <-p.ended:
	case <-time.After(patience):
	}
}

// Close lets go of the process.
func (p *Started) Close() { _ = p.channel.Close() }
