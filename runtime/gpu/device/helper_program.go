package device

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/runtime/channel"
)

// ProgramName is that of the program.
const ProgramName = "cryo-gpu-keeper"

// maxLast is how much of the program's standard error is kept, bytes.
const maxLast = 4 << 10

// Program is the program running one of its commands, and the channel to it.
type Program struct {
	Channel *channel.Channel // the program's descriptor 3
	command *exec.Cmd
	last    *tail
	ended   chan struct{} // closed when it has been waited for
	err     error         // how it ended; written before ended is closed
	silent  atomic.Int64  // nanoseconds after which it was killed because it had not answered; 0: it was not
}

// ProgramIn returns the path of the program in a directory. For the directory "" it returns "": then [RunProgram] looks for the program by itself.
func ProgramIn(dir string) string {
	if dir == "" {
		return ""
	}
	return filepath.Join(dir, ProgramName)
}

// find gives the program's path.
func find(path string) (string, error) {
	if path != "" {
		if _, err := exec.LookPath(path); err != nil {
			return "", noHelper(path, err)
		}
		return path, nil
	}
	if self, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(self), ProgramName)
		if _, err := exec.LookPath(beside); err == nil {
			return beside, nil
		}
	}
	found, err := exec.LookPath(ProgramName)
	if err != nil {
		return "", noHelper("beside the program and in PATH", err)
	}
	return found, nil
}

// RunProgram starts a command of the program at path, or, where path is "", the one beside the own executable, else that of PATH. [ErrNoHelper]: there is none.
func RunProgram(path, do string) (*Program, error) {
	path, err := find(path)
	if err != nil {
		return nil, err
	}
	own, other, err := channel.Pair()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", ProgramName, err)
	}
	defer other.Close() // the program's death is heard when no other process has it
	command := exec.Command(path, do)
	command.Dir = "/"
	command.ExtraFiles = []*os.File{other}
	// A session of its own: the terminal's Ctrl-C is not for it, and nothing ends it with its parent.
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	p := &Program{Channel: own, command: command, last: &tail{}, ended: make(chan struct{})}
	command.Stderr = p.last
	if err := command.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", ProgramName, err), own.Close())
	}
	go func() {
		p.err = command.Wait()
		close(p.ended)
	}()
	return p, nil
}

// PID is its process id.
func (p *Program) PID() int { return p.command.Process.Pid }

// Ended is closed when it has ended.
func (p *Program) Ended() <-chan struct{} { return p.ended }

// Died waits for a program that has hung up, and gives the [DiedError] that says how it ended.
func (p *Program) Died() error {
	select {
	case <-p.ended:
	case <-time.After(10 * time.Second):
		_ = p.Kill()
		select {
		case <-p.ended:
		case <-time.After(10 * time.Second): // it may be in a call of the driver that does not end
			return &DiedError{How: "it cannot be ended", Last: p.last.String(), Silent: time.Duration(p.silent.Load())}
		}
	}
	how := "exit status 0"
	if errors.Is(p.err, syscall.ECHILD) {
		how = "status unknown" // a shim reaps all children, and may be faster
	} else if p.err != nil {
		how = p.err.Error()
	}
	return &DiedError{How: how, Last: p.last.String(), Silent: time.Duration(p.silent.Load())}
}

// Kill ends it at once.
func (p *Program) Kill() error {
	if err := p.command.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill %s: %w", ProgramName, err)
	}
	return nil
}

// Silence kills it because it has not answered for so long.
func (p *Program) Silence(after time.Duration) error {
	p.silent.Store(int64(after))
	return p.Kill()
}

// closeTime is how long it may take to its end when it is killed: the driver lets go of what it has.
const closeTime = time.Minute

// Close ends it, and waits for that. What it has done to processes stays done, and memory lives on where another process has its descriptor.
func (p *Program) Close() error {
	_ = p.Kill() // its own end would take the driver longer
	_ = p.Channel.Close()
	select {
	case <-p.ended:
		return nil
	case <-time.After(closeTime): // it may be in a call of the driver that does not end
		return fmt.Errorf("end %s: process %d lives after %s: %w", ProgramName, p.PID(), closeTime, errdefs.ErrUnavailable)
	}
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
