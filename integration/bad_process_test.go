package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
	"github.com/cryo-project/cryo/runtime/runc"
)

// process is one of a host's, which are told by the host's cgroups: other labs may run at the same time.
type process struct {
	pid     int
	command string // see proc_pid_comm(5)
}

func processes(_ *testing.T, h *lab.Host) (found []process) {
	for _, p := range h.Running() {
		found = append(found, process{p.PID, p.Command})
	}
	return found
}

// find waits for a process of a host, for at most some seconds; 0 if there is none.
func find(t *testing.T, h *lab.Host, is func(process) bool) (pid int) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		for _, p := range processes(t, h) {
			if is(p) {
				return p.pid
			}
		}
	}
	return 0
}

// isCRIU tells whether a process is CRIU, and no child of it that has its name for a moment.
func isCRIU(p process) bool {
	if p.command != "criu" {
		return false
	}
	parent, err := runc.Parent(p.pid)
	if err != nil {
		return false
	}
	command, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", parent))
	return err == nil && strings.TrimSpace(string(command)) != "criu"
}

// dumping reports whether a process is the CRIU that dumps for a checkpoint process. Its working directory is the checkpoint process's.
func dumping(h *lab.Host) func(process) bool {
	return func(p process) bool {
		dir, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", p.pid))
		return err == nil && isCRIU(p) && strings.HasPrefix(dir, filepath.Join(h.CryoRoot(), "work")+"/")
	}
}

// called tells whether a process has a command.
func called(command string) func(process) bool {
	return func(p process) bool { return p.command == command }
}

// runsShim reports whether a process is the shim of a container whose id contains these words, and not containerd's call that starts one or tidies up after it.
func runsShim(id string) func(process) bool {
	return func(p process) bool {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.pid))
		words := strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")
		return err == nil && strings.Contains(words[0], "containerd-shim-cryo-v1") && strings.Contains(string(line), id) && !slices.Contains([]string{"start", "delete"}, words[len(words)-1])
	}
}

// kill ends a process with SIGKILL; one that has ended by itself is no error.
func kill(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && err != syscall.ESRCH {
		t.Fatal(err)
	}
}
