package lab

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// Program is a daemon beside containerds and registries, of a host or of the machine. It ends with its host or with the lab at the latest.
type Program struct {
	Name string
	Log  string // file with what it prints

	command *exec.Cmd
	done    chan struct{}
}

// Command prepares a program that runs on the machine, outside all hosts. A shell enters the lab's cgroups and then becomes the program; the lab ends it when it closes.
func (l *Lab) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, "sh", append([]string{"-c", enter, "sh", l.instance.cgroups(), name}, args...)...)
	c.WaitDelay = 5 * time.Second
	return c
}

// Number is unique among the labs of the machine and from 1 to 250: for networks that this lab alone has.
func (l *Lab) Number() int { return l.instance.number }

// Bridge is the name of the network device that has [Lab.Address].
func (l *Lab) Bridge() string { return l.instance.name() }

// Launch starts a prepared command in the background. What it prints is appended to NAME.log in the lab's directory.
func (l *Lab) Launch(name string, command *exec.Cmd) (*Program, error) {
	return launch(name, filepath.Join(l.Dir, name+".log"), command)
}

// Launch starts a program on the host in the background. What it prints is appended to NAME.log in the host's directory. It is no leak of the host's.
func (h *Host) Launch(name string, args ...string) (*Program, error) {
	p, err := launch(name, filepath.Join(h.Dir, name+".log"), h.Command(context.Background(), args[0], args[1:]...))
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	h.programs = append(h.programs, p)
	h.mu.Unlock()
	return p, nil
}

func launch(name, log string, command *exec.Cmd) (*Program, error) {
	file, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open log of %s: %w", name, err)
	}
	defer file.Close()
	p := &Program{Name: name, Log: log, command: command, done: make(chan struct{})}
	command.Stdout, command.Stderr = file, file
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		_ = command.Wait() // how it ended is in its log
		close(p.done)
	}()
	return p, nil
}

// Pid is that of the process, which may have ended.
func (p *Program) Pid() int { return p.command.Process.Pid }

// Ended is nil while the program runs, and says then what it said last.
func (p *Program) Ended() error {
	select {
	case <-p.done:
		return fmt.Errorf("%s ended, see %s:\n%s", p.Name, p.Log, tail(p.Log, 2000))
	default:
		return nil
	}
}

// Stop sends the program a signal and waits for its end, at most a minute.
func (p *Program) Stop(sig syscall.Signal) error {
	if p.Ended() != nil {
		return nil
	}
	if err := p.command.Process.Signal(sig); err != nil && p.Ended() == nil {
		return fmt.Errorf("stop %s: %w", p.Name, err)
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(time.Minute):
		return fmt.Errorf("stop %s: it did not end in a minute", p.Name)
	}
}
