// Package sweep is how a shim has removed what a cryo command leaves that is killed: the command writes an order into its working directory, which it
// keeps locked, and the shim runs it when the lock is free and the directory is still there.
package sweep

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

const (
	orderFile = "sweep.json"
	lockFile  = "lock" // see package image/store, Work
)

// Order is the program to run, with its arguments.
type Order struct {
	Args []string `json:"args"`
}

// Write leaves the order in a working directory.
func (o Order) Write(work string) error {
	data, err := json.Marshal(o)
	if err == nil {
		err = os.WriteFile(filepath.Join(work, orderFile), data, 0o600)
	}
	if err != nil {
		return fmt.Errorf("tell the shim how to sweep: %w", err)
	}
	return nil
}

// sweepTime bounds how long the program may take.
const sweepTime = 5 * time.Minute

// againTime is between two looks whether all is swept.
const againTime = time.Second

// After waits until the command with this working directory has ended, and runs its order if it was killed, until it has succeeded: a command that ends by
// itself says so in its lock. There may be neither directory nor order, for other clients: that is no error, and nothing is waited for.
func After(ctx context.Context, work string) error {
	lock, err := os.Open(filepath.Join(work, lockFile))
	if err != nil {
		return nil //nolint:nilerr // nobody's, or gone
	}
	defer lock.Close()
	data, err := os.ReadFile(filepath.Join(work, orderFile))
	if err != nil {
		return nil //nolint:nilerr // there is no order
	}
	var o Order
	if err := json.Unmarshal(data, &o); err != nil || len(o.Args) == 0 || !filepath.IsAbs(o.Args[0]) {
		return fmt.Errorf("read how to sweep: %q, %w", data, err)
	}
	for {
		err := unix.Flock(int(lock.Fd()), unix.LOCK_SH)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for the end of a command: %w", err)
		}
	}
	if info, err := lock.Stat(); err != nil || info.Size() > 0 {
		return err // it has ended by itself
	}
	lock.Close() // who sweeps takes it
	ctx, cancel := context.WithTimeout(ctx, sweepTime)
	defer cancel()
	for {
		// While the directory is there the program takes the command for alive, and CRIU, which still writes into it, may keep it from being removed. Any
		// process that opens the store may remove it first; what the command has made in containerd is there still.
		_, err := os.Lstat(work)
		gone := errors.Is(err, os.ErrNotExist)
		out, err := exec.CommandContext(ctx, o.Args[0], o.Args[1:]...).CombinedOutput()
		if gone && err == nil {
			return nil
		}
		// containerd may be away, and a process that is just being started may have held the lock for a moment.
		select {
		case <-time.After(againTime):
		case <-ctx.Done():
			return fmt.Errorf("sweep after a command that was killed: %w: %w: %s", ctx.Err(), err, out)
		}
	}
}
