package lab

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"syscall"
)

// reaperVariable marks a process as a lab's reaper: number, space, directory.
const reaperVariable = "CRYO_LAB_REAPER"

// reaper is a copy of this program that outlives it just long enough to clear its lab away.
type reaper struct {
	command *exec.Cmd
	stdin   io.WriteCloser
}

// Main must be called first by every program that opens a lab: it makes the program its own lab's reaper where it
// was started as that, and then does not return.
func Main() {
	value := os.Getenv(reaperVariable)
	if value == "" {
		return
	}
	var in instance
	if _, err := fmt.Sscan(value, &in.number, &in.dir); err != nil {
		os.Exit(2)
	}
	// The owner writes one byte when it has cleared up itself; its death closes the pipe without one.
	if n, _ := os.Stdin.Read(make([]byte, 1)); n == 1 {
		os.Exit(0)
	}
	if err := errors.Join(in.sweep(), os.RemoveAll(in.dir)); err != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

// startReaper starts it in a session of its own, so that Ctrl-C does not reach it. It inherits the lock: the number
// stays taken until it is done.
func startReaper(in *instance) (*reaper, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find own program: %w", err)
	}
	command := exec.Command(self)
	command.Env = append(os.Environ(), reaperVariable+"="+strconv.Itoa(in.number)+" "+in.dir)
	command.ExtraFiles = []*os.File{in.lock}
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	stdin, err := command.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("make reaper's pipe: %w", err)
	}
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("start reaper: %w", err)
	}
	return &reaper{command: command, stdin: stdin}, nil
}

func (r *reaper) stop() error {
	_, err := r.stdin.Write([]byte{0})
	return errors.Join(err, r.stdin.Close(), r.command.Wait())
}
