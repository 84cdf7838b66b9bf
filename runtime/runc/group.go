package runc

import (
	"bytes"
	"crypto/rand"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// group marks the processes of one dump, runc and CRIU, by a variable in their environment, so that CRIU is found also
// when runc has died and left it to the shim.
type group struct{ mark string }

func newGroup() group { return group{"CRYO_DUMP=" + rand.Text()} }

// variable is what goes into the environment of runc.
func (g group) variable() string { return g.mark }

// endTime bounds how long a killed process may take to go.
const endTime = 10 * time.Second

// endUntil kills CRIU, and what it becomes until runc has gone: runc sees their socket close, reports and exits.
// Killing runc first would leave CRIU at work on its own.
func (g group) endUntil(done <-chan struct{}, runc int) {
	for {
		for _, pid := range g.processes() {
			if pid != runc {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
		select {
		case <-done:
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// end kills all that is left of the group and waits until it is gone.
func (g group) end() {
	for deadline := time.Now().Add(endTime); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		left := g.processes()
		if len(left) == 0 {
			return
		}
		for _, pid := range left {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
}

// processes gives the processes that carry the mark. A zombie has no environment any more.
func (g group) processes() []int {
	environments, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		return nil
	}
	var found []int
	for _, path := range environments {
		environment, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(environment, []byte(g.mark)) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil {
			found = append(found, pid)
		}
	}
	return found
}
