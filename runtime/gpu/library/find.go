package library

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// threadName is the comm of the library's thread while it sleeps; awake, a blank and a descriptor's number follow.
const threadName = "cryo-gpu"

// find returns the id of the library's thread in a process, and whether there is one. proc is /proc. A process that is gone has none.
func find(proc string, pid int) (tid int, ok bool, err error) {
	tasks, err := os.ReadDir(filepath.Join(proc, strconv.Itoa(pid), "task"))
	if err != nil && !isGone(err) {
		return 0, false, fmt.Errorf("look at the threads of process %d: %w", pid, err)
	}
	for _, t := range tasks {
		tid, err := strconv.Atoi(t.Name())
		if err != nil {
			continue
		}
		name, err := comm(proc, pid, tid)
		if isGone(err) {
			continue
		}
		if err != nil {
			return 0, false, err
		}
		if name == threadName || strings.HasPrefix(name, threadName+" ") {
			return tid, true, nil
		}
	}
	return 0, false, nil
}

// comm returns a thread's name.
func comm(proc string, pid, tid int) (string, error) {
	b, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "task", strconv.Itoa(tid), "comm"))
	if err != nil {
		return "", fmt.Errorf("look at thread %d of process %d: %w", tid, pid, err)
	}
	return strings.TrimSuffix(string(b), "\n"), nil
}

// isGone is true for what /proc says of processes and threads that have ended.
func isGone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH)
}
