package runc

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// group is the CRIU processes of one dump. They are told by their working directory, so that they are found also when
// runc has died and left them to the shim: CRIU overwrites its environment and its command line. While CRIU is in the container's mount namespace it has another
// working directory, and is told by its log, which is open there.
type group struct {
	work string // CRIU's work directory, of this dump alone
	// named, unless empty, is the directory as runc was told of it. A runc that is still there, or a child of it that is not CRIU yet, is of the group, too.
	named string
	// network, unless nil, is the container's own. What runs there in that directory is what CRIU has started to lock the network.
	network *Network
}

// EndDump ends what is left of a dump or a restore whose shim or runc has died: runc, and the CRIU processes in its work directory.
func EndDump(work string) error {
	named := work
	// The directory itself may be gone: its owner, the checkpoint process, may have died as well.
	parent, err := filepath.EvalSymlinks(filepath.Dir(work))
	switch {
	case err == nil:
		work = filepath.Join(parent, filepath.Base(work))
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("find CRIU's work directory: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), endTime)
	defer cancel()
	_ = group{work: work, named: named}.endAll(ctx) // not waited for for ever
	return nil
}

const (
	endTime    = 10 * time.Second // bounds how long a killed process may take to go
	orphanTime = time.Second      // between two looks for orphans
)

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

// endAll kills all that is left of the group and waits until it is gone.
func (g group) endAll(ctx context.Context) error {
	if err := until(ctx, func() (bool, error) { return g.kill() == 0, nil }); err != nil {
		return fmt.Errorf("end CRIU: it is still there: %w", err)
	}
	return nil
}

// endOrphans ends the group as soon as it has a process whose parent is neither runc nor of the group, until done. A CRIU
// that is killed while it probes the kernel leaves a stopped child, which holds the socket whose end runc waits for.
func (g group) endOrphans(runc int, done <-chan struct{}) {
	ticker := time.NewTicker(orphanTime)
	defer ticker.Stop()
	for {
		select {
		case <-done:
			return
		case <-ticker.C:
		}
		pids := g.processes()
		if slices.ContainsFunc(pids, func(pid int) bool {
			parent, err := Parent(pid)
			return err == nil && parent != runc && !slices.Contains(pids, parent)
		}) {
			g.endUntil(done)
		}
	}
}

// command returns the name of a process; empty if there is none. Source: proc_pid_comm(5).
func command(pid int) string {
	name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	return strings.TrimSpace(string(name))
}

// kill sends SIGKILL to what there is of the group, and tells how many processes that were.
func (g group) kill() (killed int) {
	pids := g.processes()
	for _, pid := range pids {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	return len(pids)
}

func (g group) processes() []int {
	return slices.DeleteFunc(processes(), func(pid int) bool { return !g.has(pid) })
}

// processes lists all of this host.
func processes() (pids []int) {
	directories, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil
	}
	for _, path := range directories {
		if pid, err := strconv.Atoi(filepath.Base(path)); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

func (g group) has(pid int) bool {
	process := fmt.Sprintf("/proc/%d/", pid)
	criu := command(pid) == "criu"
	if criu || g.network != nil {
		// A zombie has no working directory any more. A directory that was removed under a process is marked so by the kernel.
		dir, err := os.Readlink(process + "cwd")
		if err == nil && strings.TrimSuffix(dir, " (deleted)") == g.work {
			return criu || g.network.Has(pid)
		}
	}
	if criu {
		open, _ := os.ReadDir(process + "fd") // it may have ended
		return slices.ContainsFunc(open, func(e os.DirEntry) bool {
			file, err := os.Readlink(process + "fd/" + e.Name())
			file = strings.TrimSuffix(file, " (deleted)")
			return err == nil && filepath.Dir(file) == g.work && filepath.Ext(file) == ".log"
		})
	}
	if g.named == "" {
		return false
	}
	line, _ := os.ReadFile(process + "cmdline")
	words := strings.Split(string(line), "\x00")
	i := slices.Index(words, "--work-path")
	return i >= 0 && i+1 < len(words) && words[i+1] == g.named && !Ended(pid)
}
