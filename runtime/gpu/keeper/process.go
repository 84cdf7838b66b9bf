package keeper

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
)

// Program is the keeper's name.
const Program = "cryo-gpu-keeper"

// CloseTimeout is how long [Client.Close] waits for a keeper. Restoring the whole memory of eight large devices takes less.
const CloseTimeout = 5 * time.Minute

// maxLast is how much of the keeper's standard error is kept, bytes.
const maxLast = 4 << 10

// process is a keeper's process and the pipes to it.
type process struct {
	command *exec.Cmd
	in      io.WriteCloser
	pipe    *os.File // under out
	out     lines
	last    *tail
	ended   chan struct{} // closed when it has been waited for
	err     error         // how it ended; written before ended is closed
	end     func() error  // once
}

// find gives the program's path.
func find(path string) (string, error) {
	if path != "" {
		if _, err := exec.LookPath(path); err != nil {
			return "", &MissingError{Path: path, Err: err}
		}
		return path, nil
	}
	if self, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(self), Program)
		if _, err := exec.LookPath(beside); err == nil {
			return beside, nil
		}
	}
	found, err := exec.LookPath(Program)
	if err != nil {
		return "", &MissingError{Path: "beside the program and in PATH", Err: err}
	}
	return found, nil
}

func startProcess(path string, args ...string) (*process, error) {
	path, err := find(path)
	if err != nil {
		return nil, err
	}
	command := exec.Command(path, args...)
	command.Dir = "/"
	// A session of its own: the terminal's Ctrl-C is not for it, and nothing ends it with its parent.
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	p := &process{command: command, last: &tail{}, ended: make(chan struct{})}
	command.Stderr = p.last
	if p.in, err = command.StdinPipe(); err != nil {
		return nil, fmt.Errorf("start %s: %w", Program, err)
	}
	// Not StdoutPipe: waiting would close it before the last line is read.
	r, w, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", Program, err), p.in.Close())
	}
	command.Stdout = w
	err = command.Start()
	w.Close()
	if err != nil {
		r.Close()
		return nil, errors.Join(fmt.Errorf("start %s: %w", Program, err), p.in.Close())
	}
	p.pipe, p.out, p.end = r, newLines(r), sync.OnceValue(p.finish)
	go func() {
		p.err = command.Wait()
		close(p.ended)
	}()
	return p, nil
}

// receive reads the next answer.
func (p *process) receive() (answer, error) {
	line, err := p.out.next()
	if errors.Is(err, io.EOF) {
		return answer{}, p.died()
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
		return answer{}, p.died()
	}
	return p.receive()
}

// died waits for a process whose pipes have ended.
func (p *process) died() error {
	select {
	case <-p.ended:
	case <-time.After(10 * time.Second):
		_ = p.kill()
		<-p.ended
	}
	how := "exit status 0"
	if errors.Is(p.err, syscall.ECHILD) {
		how = "status unknown" // a shim reaps all children, and may be faster
	} else if p.err != nil {
		how = p.err.Error()
	}
	return &DiedError{How: how, Last: p.last.String()}
}

func (p *process) kill() error {
	if err := p.command.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill %s: %w", Program, err)
	}
	return nil
}

// finish closes the keeper's standard input, reads what it undid, and waits for it.
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
		return fmt.Errorf("end %s: process %d is still undoing: %w", Program, p.command.Process.Pid, errdefs.ErrUnavailable)
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

// tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex
	data []byte
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.data = append(t.data, b...)
	t.data = t.data[max(0, len(t.data)-maxLast):]
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.data))
}
