package host

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/containerd/log"
)

// Command prepares a program that looks at the host. When ctx ends, all that it has started ends with it: some of what
// criu check tries are children that stand still until they are told to go on, and no process is left to tell them.
func Command(ctx context.Context, path string, args ...string) *exec.Cmd {
	log.G(ctx).WithFields(log.Fields{"program": path, "args": args}).Debug("start a process")
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error {
		err := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		if errors.Is(err, syscall.ESRCH) {
			return os.ErrProcessDone
		}
		return err
	}
	cmd.WaitDelay = time.Second // a process that has left the group may hold its output
	return cmd
}
