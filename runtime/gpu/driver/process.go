package driver

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/runtime/channel"
)

// CloseTimeout is how long [Client.Close] waits for a helper. Restoring the whole memory of eight large devices takes less.
const CloseTimeout = 5 * time.Minute

// process is a helper and the channel to it.
type process struct {
	*Program
	channel *channel.Channel
	end     func() error // once
}

func startProcess(path string, args ...string) (*process, error) {
	own, other, err := channel.Pair()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", Name, err)
	}
	program, err := Run(path, func(c *exec.Cmd) { c.ExtraFiles = []*os.File{other} }, args...)
	other.Close() // the helper's death is heard when nobody else has it
	if err != nil {
		own.Close()
		return nil, err
	}
	p := &process{Program: program, channel: own}
	p.end = sync.OnceValue(p.finish)
	return p, nil
}

// receive reads the next answer.
func (p *process) receive() (answer, error) {
	var data json.RawMessage
	fds, err := p.channel.Receive(&data)
	channel.Close(fds) // it sends none
	if errors.Is(err, io.EOF) {
		return answer{}, p.Died()
	}
	if err != nil {
		return answer{}, err
	}
	return decodeAnswer(data)
}

func (p *process) exchange(r request) (answer, error) {
	if err := p.channel.Send(r); err != nil {
		return answer{}, p.Died()
	}
	return p.receive()
}

// finish hangs up, reads what the helper undid, and waits for it.
func (p *process) finish() error {
	_ = p.channel.HangUp() // it may have ended
	last := make(chan error, 1)
	go func() {
		defer p.channel.Close()
		a, err := p.receive()
		if failed := failures(a.Undone); err == nil && len(failed) > 0 {
			err = undoError(failed)
		}
		last <- err
	}()
	select {
	case <-p.ended:
		return <-last
	case <-time.After(CloseTimeout):
		return fmt.Errorf("end %s: process %d is still undoing: %w", Name, p.PID(), errdefs.ErrUnavailable)
	}
}

// failures are the outcomes that are none of success.
func failures(all []Outcome) []Outcome {
	var failed []Outcome
	for _, o := range all {
		if o.Code != 0 {
			failed = append(failed, o)
		}
	}
	return failed
}
