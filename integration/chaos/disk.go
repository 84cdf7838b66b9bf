package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// disk is a file system under cryo's store whose power can be cut, and that can give errors: see integration/forgetful.
type disk struct {
	program string
	dir, at string
	command *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Scanner
}

func openDisk(l *lab.Lab, dir, at string) (*disk, error) {
	d := &disk{program: l.Tool("forgetful"), dir: dir, at: at}
	if err := os.MkdirAll(at, 0o711); err != nil {
		return nil, err
	}
	return d, d.start()
}

func (d *disk) start() (err error) {
	d.command = exec.Command(d.program, d.dir, d.at)
	d.command.Stderr = os.Stderr
	d.command.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // Ctrl-C does not reach it: it ends with its input
	if d.in, err = d.command.StdinPipe(); err != nil {
		return err
	}
	out, err := d.command.StdoutPipe()
	if err != nil {
		return err
	}
	d.out = bufio.NewScanner(out)
	if err := d.command.Start(); err != nil {
		return &lab.MissingError{What: "no " + d.program, Hint: "run: make chaos"}
	}
	return d.answer()
}

func (d *disk) answer() error {
	if !d.out.Scan() {
		return errors.Join(errors.New("forgetful has ended"), d.out.Err())
	}
	if text := d.out.Text(); text != "ok" {
		return errors.New(text)
	}
	return nil
}

func (d *disk) tell(format string, args ...any) error {
	if _, err := fmt.Fprintf(d.in, format+"\n", args...); err != nil {
		return err
	}
	return d.answer()
}

// fail has calls give an error from now on; 0: no more.
func (d *disk) fail(call string, errno syscall.Errno) error {
	return d.tell("fail %s %d", call, int(errno))
}

// cut makes the disk what it is when power comes back. Nobody uses it.
func (d *disk) cut(seed uint64, share float64) error {
	if err := d.tell("cut %d %g", seed, share); err != nil {
		return err
	}
	if err := d.command.Wait(); err != nil {
		return err
	}
	return d.start()
}

// close ends it when it has been unmounted.
func (d *disk) close() error {
	_ = d.in.Close() // it ends then, and is waited for
	ended := make(chan error, 1)
	go func() { ended <- d.command.Wait() }()
	select {
	case err := <-ended:
		return err
	case <-time.After(10 * time.Second): // somebody uses it
		return errors.Join(d.command.Process.Kill(), <-ended)
	}
}

// disksOf are for what needs a disk that forgets.
func disksOf(o *operation) []string {
	if !o.stores {
		return nil
	}
	return []string{"during", "after"}
}

func callsOf(o *operation) []string {
	if !o.stores {
		return nil
	}
	return []string{"fsync", "write"}
}

// power cuts the power of the host and of its disk. Half of the time nothing that was not synced is there then, else a part of it.
func power(ctx context.Context, r *round, _ int) error {
	share := 0.0
	if r.choice.Pick%2 == 1 {
		share = r.choice.Amount
	}
	r.over = r.ended()
	return r.host.Reboot(ctx, func() error {
		return r.world.disks[r.host].cut(uint64(r.choice.Round), share)
	})
}

// breakDisk has the disk give errors until the operation is over.
func breakDisk(_ context.Context, r *round, _ int) error {
	errno := syscall.EIO
	if r.choice.Pick%2 == 1 {
		errno = syscall.ENOSPC
	}
	d := r.world.disks[r.host]
	r.note("%s gives %v", r.choice.Target, errno)
	r.mend = func(context.Context) error { return d.fail(r.choice.Target, 0) }
	return d.fail(r.choice.Target, errno)
}

// ended tells whether the container's first process has ended by now, by an order that only a snapshot allows. Its number may be another process's since.
func (r *round) ended() bool {
	since := began(r.world.pid)
	return since == "" || since != r.world.since
}

// began is when a process began, in the kernel's ticks since the machine was started; empty if there is none, or it has ended. Source: proc_pid_stat(5).
func began(pid int) string {
	stat, err := os.ReadFile(filepath.Join("/proc", fmt.Sprint(pid), "stat"))
	if err != nil {
		return ""
	}
	const state, start = 0, 19 // places after the name, which may have spaces
	fields := strings.Fields(string(stat[strings.LastIndex(string(stat), ")")+1:]))
	if len(fields) <= start || fields[state] == "Z" {
		return ""
	}
	return fields[start]
}
