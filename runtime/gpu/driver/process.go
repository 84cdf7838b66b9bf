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
)

// CloseTimeout is how long [Client.Close] waits for a helper. Restoring the whole memory of eight large devices takes less.
const CloseTimeout = 5 * time.Minute

// process is a helper and the pipes to it.
type process struct {
	*Program
	in   io.WriteCloser
	pipe *os.File // under out
	out  lines
	end  func() error // once
}

func startProcess(path string, args ...string) (*process, error) {
	inside, in, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", Name, err)
	}
	defer inside.Close()
	// Not StdoutPipe: waiting would close it before the last line is read.
	out, outside, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", Name, err), in.Close())
	}
	defer outside.Close()
	program, err := Run(path, func(c *exec.Cmd) { c.Stdin, c.Stdout = inside, outside }, args...)
	if err != nil {
		in.Close()
		out.Close()
		return nil, err
	}
	p := &process{Program: program, in: in, pipe: out, out: newLines(out)}
	p.end = sync.OnceValue(p.finish)
	return p, nil
}

// receive reads the next answer.
func (p *process) receive() (answer, error) {
	line, err := p.out.next()
	if errors.Is(err, io.EOF) {
		return answer{}, p.Died()
	}
	if err != nil {
		return answer{}, err
	}
	return decodeAnswer(line)
}

func (p *process) exchange(r request) (answer, error) {
	line, err := json.Marshal(r)
	if err != nil {
		return answer{}, fmt.Errorf("encode request: %w", err)
	}
	if _, err := p.in.Write(append(line, '\n')); err != nil {
		return answer{}, p.Died()
	}
	return p.receive()
}

// finish closes the helper's standard input, reads what it undid, and waits for it.
func (p *process) finish() error {
	_ = p.in.Close()
	last := make(chan error, 1)
	go func() {
		defer p.pipe.Close()
		a, err := p.receive()
		if failed := failures(a.Undone); err == nil && len(failed) > 0 {
			err = &UndoError{failed}
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
