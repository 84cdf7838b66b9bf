package gputest

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// App is a running fakeapp.
type App struct {
	t      testing.TB
	Socket string
	PID    int
	PIDs   []int // of its processes, ascending
	Ended  chan struct{}
}

// Answer is fakeapp's to a command.
type Answer struct {
	Life  string
	Count int
	OK    bool
	Error string
	State struct {
		Processes []struct {
			PID, Bytes, Ticks, Rounds int
			Devices                   []string
			Saved                     int    // bytes of device memory, by the driver's last checkpoint
			Limits                    []int  // of each device's context, bytes of a stack
			Handle                    string // of an allocation, for other processes
			Sum                       uint64 // of what is in it
		}
	}
}

// Run starts a fakeapp and waits until it answers.
func (h *Host) Run(flags ...string) *App {
	h.t.Helper()
	dir := h.t.TempDir()
	a := &App{t: h.t, Socket: filepath.Join(dir, "ask.sock"), Ended: make(chan struct{})}
	program := Bin("fakecuda", "program")
	args := []string{filepath.Join(program, "ld.so"), "--library-path", Bin("fakecuda") + ":" + program, filepath.Join(program, "fakeapp"), "--quiet", "--socket", a.Socket}
	if args = append(args, flags...); h.Wrapper != "" {
		args = append([]string{h.Wrapper}, args...)
	}
	command := exec.Command(args[0], args[1:]...)
	command.Env = append(h.variables(), h.Env...)
	command.Dir = dir
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	stderr, err := os.Create(a.Socket + ".stderr")
	if err != nil {
		h.t.Fatal(err)
	}
	defer stderr.Close()
	command.Stderr = stderr
	if err := command.Start(); err != nil {
		h.t.Fatal(err)
	}
	go func() {
		_ = command.Wait()
		close(a.Ended)
	}()
	a.PID = command.Process.Pid
	h.t.Cleanup(a.Kill)
	Eventually(h.t, "fakeapp answers", func() bool {
		got, err := a.Ask("check", long)
		if err != nil || !got.OK {
			return false
		}
		for _, p := range got.State.Processes {
			a.PIDs = append(a.PIDs, p.PID)
		}
		return true
	})
	return a
}

// Kill ends the app with all its processes.
func (a *App) Kill() {
	_ = syscall.Kill(-a.PID, syscall.SIGKILL)
	<-a.Ended
}

// Stderr returns the app's output of errors.
func (a *App) Stderr() string {
	text, _ := os.ReadFile(a.Socket + ".stderr")
	return string(text)
}

// Ask sends a command and returns the answer.
func (a *App) Ask(command string, timeout time.Duration) (got Answer, err error) {
	c, err := net.Dial("unix", a.Socket)
	if err != nil {
		return got, err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(timeout)); err != nil {
		return got, err
	}
	if _, err := fmt.Fprintln(c, command); err != nil {
		return got, err
	}
	line, err := bufio.NewReader(c).ReadBytes('\n') // a forked child may have the socket too
	if err != nil {
		return got, err
	}
	return got, json.Unmarshal(line, &got)
}

// Does fails the test unless a command succeeds.
func (a *App) Does(command string) Answer {
	a.t.Helper()
	got, err := a.Ask(command, long)
	if err != nil || !got.OK {
		a.t.Fatalf("fakeapp: %s: %+v, %v: %s", command, got, err, a.Stderr())
	}
	return got
}

// Works fails the test unless all device memory can be reached and is as it was.
func (a *App) Works() Answer { a.t.Helper(); return a.Does("check") }

// Waits fails the test if the program can reach its devices.
func (a *App) Waits() {
	a.t.Helper()
	if got, err := a.Ask("check", 200*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		a.t.Fatalf("fakeapp does not wait: %+v, %v", got, err)
	}
	a.Does("count")
}

// Must fails the test with what the app has written.
func (a *App) Must(err error) {
	a.t.Helper()
	if err != nil {
		a.t.Fatalf("%v: %s", err, a.Stderr())
	}
}
