package runc

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	gorunc "github.com/containerd/go-runc"
	"golang.org/x/sys/unix"
)

// Restoring is a restore that may have to be ended: the processes that it has made wait for each other, or for memory that does
// not come, and are told neither by their name nor by their directory any more.
type Restoring struct {
	group group
	of    Container
	name  string       // of runc's process
	runcs map[int]bool // parents of CRIU and of all that it makes
	since time.Time    // the first End
	last  int          // runc, as it was found last; 0: it was not
	criu  struct {     // CRIU, as it was found last
		pid     int
		started uint64
	}
}

// Restoring returns the restore with this work directory of CRIU's.
func (c Container) Restoring(work string) *Restoring {
	if found, err := filepath.EvalSymlinks(work); err == nil {
		work = found
	}
	name := filepath.Base(cmp.Or(c.Runtime.Command, gorunc.DefaultCommand))
	return &Restoring{group: group{work: work}, of: c, name: name[:min(len(name), maxCommand)], runcs: make(map[int]bool)}
}

// maxCommand is how much of a name the kernel keeps. Source: proc_pid_comm(5).
const maxCommand = 15

// reportTime is how long runc may take to report and to exit when nothing else is left of the restore.
const reportTime = 3 * time.Second

// End kills what there is of the restore but runc, which reports and exits then. It has to be called again until runc has: CRIU may
// not have been started yet. A runc that does not exit is killed, too.
func (r *Restoring) End() {
	for _, pid := range r.group.processes() {
		if parent, err := Parent(pid); err == nil && command(parent) == r.name { // not one that has taken an orphan in
			r.runcs[parent] = true
		}
	}
	if pid := r.runc(); pid != 0 {
		r.runcs[pid] = true
	}
	if r.since.IsZero() {
		r.since = time.Now()
	}
	if time.Since(r.since) > reportTime {
		for pid := range r.runcs {
			if command(pid) == r.name {
				_ = unix.Kill(pid, unix.SIGKILL) // it may have ended
			}
		}
	}
	r.group.kill()
	for deadline := time.Now().Add(endTime); time.Now().Before(deadline) && r.killChildren() > 0; {
		time.Sleep(10 * time.Millisecond)
	}
}

// throughTime is how long runc may take when CRIU has said that it is through and has ended.
const throughTime = 15 * time.Second

// EndOrphans ends the restore as soon as its CRIU has died before its time, until done: what it has made holds the socket whose end runc waits
// for. finished tells whether CRIU has said that it is through: runc, which it may not have told before it died, has some time more then.
func (r *Restoring) EndOrphans(done <-chan struct{}, finished func() bool) {
	ticker := time.NewTicker(orphanTime)
	defer ticker.Stop()
	for before, since := 0, time.Now(); ; {
		select {
		case <-done:
			return
		case <-ticker.C:
		}
		runc := r.alone()
		if runc != before {
			before, since = runc, time.Now()
			continue
		}
		if runc != 0 && (!finished() || time.Since(since) > throughTime) {
			r.runcs[runc] = true
			r.End()
		}
	}
}

// EndStalled ends the restore when it has made no progress for patience, and tells that it did; false when it is done before. Progress is what CRIU and all that it has
// made have read and written, as the kernel counts it, and what also gives, which changes with it.
func (r *Restoring) EndStalled(done <-chan struct{}, patience time.Duration, also func() string) bool {
	ticker := time.NewTicker(patience / 10)
	defer ticker.Stop()
	for before, since := "", time.Now(); ; {
		select {
		case <-done:
			return false
		case <-ticker.C:
		}
		if now := r.progress() + also(); now != before {
			before, since = now, time.Now()
		} else if time.Since(since) >= patience {
			for {
				r.End()
				select {
				case <-done:
					return true
				case <-time.After(10 * time.Millisecond):
				}
			}
		}
	}
}

// progress is other than before when the restore has gone on: a process has come or gone, or has read or written something. runc's own is not looked at. Source:
// proc_pid_io(5).
func (r *Restoring) progress() string {
	var all strings.Builder
	for _, pid := range descendants(r.runc()) {
		fmt.Fprintf(&all, "%d %s", pid, counted(pid))
	}
	return all.String()
}

// counted is what a process has read and written, as the kernel says it; empty if there is none.
func counted(pid int) string {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	return string(data)
}

// Read returns how many bytes a process has read; 0 if there is none.
func Read(pid int) (bytes int64) {
	_, _ = fmt.Sscanf(counted(pid), "rchar: %d", &bytes)
	return bytes
}

// alone returns the runc of this restore, a child of this process, if CRIU has begun and there is none any more; else 0.
func (r *Restoring) alone() int {
	if _, err := os.Stat(filepath.Join(r.group.work, "restore.log")); err != nil { // runc, libcontainer/criu_linux.go, Restore
		return 0
	}
	// A look at all processes of the host takes 2 ms and more, and CRIU lives in nearly every one.
	if s, err := stat(r.criu.pid); err == nil && s.started == r.criu.started && !s.ended() && command(r.criu.pid) == "criu" {
		return 0
	}
	// The container's first process is runc's child, too, and is called criu for a while: CRIU is the elder. runc waits for it when it hears no more of it.
	runc := r.runc()
	first := &r.criu
	first.pid = 0
	for _, pid := range childrenOf()[runc] {
		if started, err := Started(pid); err == nil && command(pid) == "criu" && (first.pid == 0 || started < first.started || started == first.started && pid < first.pid) {
			first.pid, first.started = pid, started
		}
	}
	if first.pid != 0 && !Ended(first.pid) {
		return 0
	}
	return runc
}

// runc returns the runc of this restore, a child of this process; 0 if there is none.
func (r *Restoring) runc() int {
	if r.last != 0 && r.isRunc(r.last) {
		return r.last
	}
	r.last = 0
	for _, pid := range processes() {
		if r.isRunc(pid) {
			r.last = pid
		}
	}
	return r.last
}

// isRunc reports whether a process is the runc of this restore.
func (r *Restoring) isRunc(pid int) bool {
	if command(pid) != r.name || Ended(pid) {
		return false
	}
	parent, err := Parent(pid)
	return err == nil && parent == os.Getpid() && r.of.isRestoring(pid)
}

// childrenOf returns the children of all processes.
func childrenOf() map[int][]int {
	children := make(map[int][]int)
	for _, pid := range processes() {
		if parent, err := Parent(pid); err == nil {
			children[parent] = append(children[parent], pid)
		}
	}
	return children
}

// descendants returns all that come from some processes.
func descendants(of ...int) (pids []int) {
	children := childrenOf()
	for todo := of; len(todo) > 0; todo = todo[1:] {
		pids = append(pids, children[todo[0]]...)
		todo = append(todo, children[todo[0]]...)
	}
	return pids
}

// killChildren kills all that come from a runc, and tells how many there were that lived.
func (r *Restoring) killChildren() (killed int) {
	maps.DeleteFunc(r.runcs, func(runc int, _ bool) bool { return command(runc) != r.name }) // it has ended
	for _, pid := range descendants(slices.Collect(maps.Keys(r.runcs))...) {
		if !Ended(pid) && unix.Kill(pid, unix.SIGKILL) == nil {
			killed++
		}
	}
	return killed
}
