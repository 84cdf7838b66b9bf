package criu

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"time"

	gorunc "github.com/containerd/go-runc"
)

// checked remembers what was found out about a binary, until it changes.
var checked struct {
	sync.Mutex
	path string
	time time.Time
	err  error
}

// Check runs the binary at path for its version, and returns a [*MissingError] if it does not run or is older than
// [Minimum]. It does so through go-runc's monitor, since in a shim all children are reaped by one.
func Check(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return &MissingError{Path: path, Err: err}
	}
	checked.Lock()
	defer checked.Unlock()
	if checked.path == path && checked.time.Equal(info.ModTime()) {
		return checked.err
	}
	checked.path, checked.time, checked.err = path, info.ModTime(), check(path)
	return checked.err
}

func check(path string) error {
	var output bytes.Buffer
	cmd := exec.Command(path, "--version")
	cmd.Stdout, cmd.Stderr = &output, &output
	exited, err := gorunc.Monitor.Start(cmd)
	if err != nil {
		return &MissingError{Path: path, Err: err}
	}
	if status, err := gorunc.Monitor.Wait(cmd, exited); err != nil || status != 0 {
		return &MissingError{Path: path, Err: fmt.Errorf("criu --version exits with status %d: %s", status, bytes.TrimSpace(output.Bytes()))}
	}
	version, err := ParseVersion(output.String())
	if err != nil {
		return &MissingError{Path: path, Err: err}
	}
	if !AtLeast(version, Minimum) {
		return &MissingError{Path: path, Version: version}
	}
	return nil
}
