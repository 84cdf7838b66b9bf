package runc

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// group is the CRIU processes of one dump. They are told by their working directory, so that they are found also when
// runc has died and left them to the shim: CRIU overwrites its environment and its command line.
type group struct {
	work string // CRIU's work directory, of this dump alone
}

// endTime bounds how long a killed process may take to go.
const endTime = 10 * time.Second

// endUntil kills CRIU until runc has gone: runc sees their socket close, reports and exits. Killing runc first would
// leave CRIU at work on its own.
func (g group) endUntil(done <-chan struct{}) {
	for {
		g.kill()
		select {
		case <-done:
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// end kills all that is left of the group and waits until it is gone.
func (g group) end() {
	for deadline := time.Now().Add(endTime); time.Now().Before(deadline) && g.kill() > 0; {
		time.Sleep(10 * time.Millisecond)
	}
}

// kill sends SIGKILL to what there is of the group, and tells how many processes that were.
func (g group) kill() (killed int) {
	commands, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		return 0
	}
	for _, path := range commands {
		process := filepath.Dir(path)
		command, err := os.ReadFile(path)
		if err != nil || strings.TrimSpace(string(command)) != "criu" {
			continue
		}
		// A zombie has no working directory any more.
		if dir, err := os.Readlink(filepath.Join(process, "cwd")); err != nil || dir != g.work {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(process)); err == nil {
			_ = unix.Kill(pid, unix.SIGKILL)
			killed++
		}
	}
	return killed
}
