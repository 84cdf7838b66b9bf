package criu

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	gorunc "github.com/containerd/go-runc"
	"github.com/containerd/log"

	"github.com/cryo-project/cryo/image/failure"
)

// checked remembers what was found out about a binary, until it changes.
var checked struct {
	sync.Mutex
	path string
	time time.Time
	err  error
}

// Check runs the binary at path for its version, and returns an error of kind FailedPrecondition if it does not run or is older than
// [Minimum]. It does so through go-runc's monitor, since in a shim all children are reaped by one.
func Check(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return Missing(path, err)
	}
	checked.Lock()
	defer checked.Unlock()
	if checked.path == path && checked.time.Equal(info.ModTime()) {
		return checked.err
	}
	found := check(path)
	if !errdefs.IsAborted(found) { // a CRIU that was killed has not shown whether it can be used
		checked.path, checked.time, checked.err = path, info.ModTime(), found
	}
	return found
}

// killedStatus is the least status of a process that a signal has ended, for go-runc's monitor as for a shell.
const killedStatus = 128

func check(path string) error {
	text, err := Said(path, []string{"--version"}, func() (string, error) { return ask(path) })
	if err != nil {
		return err
	}
	version, err := ParseVersion(text)
	if err != nil {
		return Missing(path, err)
	}
	if !AtLeast(version, Minimum) {
		return tooOld(path, version)
	}
	return nil
}

// ask runs the binary for its version.
func ask(path string) (string, error) {
	var output bytes.Buffer
	log.L.WithFields(log.Fields{"program": path, "args": []string{"--version"}}).Debug("start a process")
	cmd := exec.Command(path, "--version")
	cmd.Stdout, cmd.Stderr = &output, &output
	exited, err := gorunc.Monitor.Start(cmd)
	if err != nil {
		return "", Missing(path, err)
	}
	status, err := gorunc.Monitor.Wait(cmd, exited)
	if s := cmd.ProcessState; err == nil && status > killedStatus || s != nil && !s.Exited() {
		return "", failure.New(errdefs.ErrAborted, "try again", "ask CRIU for its version: it was killed (status %d)", status)
	}
	if err != nil || status != 0 {
		return "", Missing(path, fmt.Errorf("criu --version exits with status %d: %s", status, bytes.TrimSpace(output.Bytes())))
	}
	return output.String(), nil
}
