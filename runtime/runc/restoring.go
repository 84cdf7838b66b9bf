package runc

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	gorunc "github.com/containerd/go-runc"
	"golang.org/x/sys/unix"
)

// Restoring is a restore that may have to be ended: the processes that it has made wait for each other, or for memory that does
// not come, and are told neither by their name nor by their directory any more.
type Restoring struct {
	group group
	id    string       // of the container
	name  string       // of runc's process
	runcs map[int]bool // parents of CRIU and of all that it makes
}

// Restoring gives the restore with this work directory of CRIU's.
func (c Container) Restoring(work string) *Restoring {
	if found, err := filepath.EvalSymlinks(work); err == nil {
		work = found
	}
	name := filepath.Base(cmp.Or(c.Runtime.Command, gorunc.DefaultCommand))
	return &Restoring{group: group{work: work}, id: c.ID, name: name[:min(len(name), maxCommand)], runcs: make(map[int]bool)}
}

// maxCommand is how much of a name the kernel keeps. Source: proc_pid_comm(5).
const maxCommand = 15

// End kills what there is of the restore but runc, which reports and exits then. It has to be called again until runc has: CRIU may
// not have been started yet.
func (r *Restoring) End() {
	for _, pid := range r.group.processes() {
		if parent, err := Parent(pid); err == nil && command(parent) == r.name { // not one that has taken an orphan in
			r.runcs[parent] = true
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

// alone gives the runc of this restore, a child of this process, if CRIU has begun and there is none any more; else 0.
func (r *Restoring) alone() int {
	if entries, err := os.ReadDir(r.group.work); err != nil || len(entries) == 0 {
		return 0
	}
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return 0
	}
	runc := 0
	for _, path := range stats {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil || command(pid) != r.name || Ended(pid) {
			continue
		}
		if parent, err := Parent(pid); err != nil || parent != os.Getpid() {
			continue
		}
		line, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
		if words := strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00"); slices.Contains(words, "restore") && words[len(words)-1] == r.id {
			runc = pid
		}
	}
	for _, pid := range r.group.processes() {
		if parent, err := Parent(pid); err == nil && parent == runc {
			return 0
		}
	}
	return runc
}

// killChildren kills all that come from a runc, and tells how many there were that lived.
func (r *Restoring) killChildren() (killed int) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return 0
	}
	children := make(map[int][]int)
	for _, path := range stats {
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil {
			if parent, err := Parent(pid); err == nil {
				children[parent] = append(children[parent], pid)
			}
		}
	}
	var todo []int
	for runc := range r.runcs {
		if command(runc) != r.name {
			delete(r.runcs, runc) // it has ended
			continue
		}
		todo = append(todo, children[runc]...)
	}
	for len(todo) > 0 {
		pid := todo[0]
		todo = append(todo[1:], children[pid]...)
		if !Ended(pid) && unix.Kill(pid, unix.SIGKILL) == nil {
			killed++
		}
	}
	return killed
}
