package integration

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// process is one of a host's, which are told by the host's cgroups: other labs may run at the same time.
type process struct {
	pid     int
	command string // see proc_pid_comm(5)
}

func processes(t *testing.T, h *lab.Host) (found []process) {
	t.Helper()
	err := filepath.WalkDir(cgroupRoot(h), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != "cgroup.procs" {
			return nil //nolint:nilerr // cgroups come and go
		}
		content, _ := os.ReadFile(path)
		for _, field := range strings.Fields(string(content)) {
			pid, err := strconv.Atoi(field)
			if err != nil {
				return err
			}
			if command, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); err == nil {
				found = append(found, process{pid, strings.TrimSpace(string(command))})
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
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

// dumping tells whether a process is the CRIU of a dump for the cryo command, whose working directory is that command's.
func dumping(h *lab.Host) func(process) bool {
	return func(p process) bool {
		dir, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", p.pid))
		return err == nil && p.command == "criu" && strings.HasPrefix(dir, filepath.Join(h.CryoRoot(), "work")+"/")
	}
}

// called tells whether a process has a command.
func called(command string) func(process) bool {
	return func(p process) bool { return p.command == command }
}

// kill ends a process with SIGKILL; one that has ended by itself is no error.
func kill(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && err != syscall.ESRCH {
		t.Fatal(err)
	}
}
